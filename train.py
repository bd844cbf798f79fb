"""Train a law: `agents.train` has the options, `python train.py --help` lists them."""

import os
import signal

if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the imports are done, Ctrl-C ends the process with a line and no traceback.
        signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"interrupted\n"), os._exit(130)))

    from agents.scripts import covert_train

    covert_train()
