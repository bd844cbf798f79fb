"""Evaluate a trained law: `polar.evaluate` has the options, `python evaluate.py --help` lists them."""

import os
import signal

if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the imports are done, Ctrl-C ends the process with a line and no traceback.
        signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"interrupted\n"), os._exit(130)))

    from polar.scripts import covert_evaluate

    covert_evaluate()
