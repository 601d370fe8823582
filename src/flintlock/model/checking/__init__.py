"""Checks of what users submit: from a document to a job graph, with every problem and its place.

Owns: the document form of a job, the checks of documents and graphs, and the texts that name what is wrong.
Never: does I/O, knows options (that is `config`), or needs Spark.
Rejected: raising at the first problem. A user corrects a file once, not once for each mistake.
"""
