"""Train a law: `agents.train` has the options, `python train.py --help` lists them."""

import signal

if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the imports are done, Ctrl-C ends the process without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from agents.scripts import covert_train

    covert_train()
