"""Files and directories of this machine: private, replaced as a whole, locked, and their errors."""
