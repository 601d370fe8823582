"""Log files and output streams of one process: written without failing, rotated, and read from their end.

Owns: what becomes of a line that cannot be written, when a file is rotated, and which files belong to a process.
Never: knows what is logged. The names of events are in `model.log_events`.
Inputs: paths, streams and limits of the process that calls it.
Rejected: `logging.handlers`. A full disk would raise in the code that logs, and the output of a child process, which
writes to the file itself, could not be rotated.
"""
