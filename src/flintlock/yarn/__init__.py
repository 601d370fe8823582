"""Flintlock on YARN: the bridge to YARN's own client classes, the client's side, and workers in containers.

Owns: the JVM with YARN's client classes, and everything that YARN is asked over it: submitting an application, the
containers of an ApplicationMaster, files in the staging directory of an application.
Never: decides how many workers there are; that is the ResourceManager's.
Inputs: the configuration, the Hadoop configuration directory, and what the classes of YARN answer.
Rejected: YARN's REST API, which cannot request containers; a client of Hadoop's RPC written in Python.
"""
