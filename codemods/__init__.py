"""One file per optimization; a file that is here is registered."""
