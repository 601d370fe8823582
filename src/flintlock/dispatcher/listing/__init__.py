"""The listing of jobs: by pages, with counts and changes, however many jobs have ended.

Owns: which line each job has in the listing, and in which order.
Never: reads a store on behalf of a client, or knows how a job runs.
Inputs: jobs that change (`touch`, `put`), slices of ended jobs (`listing_loader`), queries of clients.
Rejected: listing ended jobs from the store at each query. A page would cost a read, and the order of running and ended
jobs would differ between two pages.
"""
