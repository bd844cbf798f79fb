"""What all agents share: settings, run folders, logs, exact evaluation, policies."""
