"""What every part of the package uses: arrays, files, checks of input, and how commands begin and end."""
