"""Object stores: addresses such as `s3://bucket/key`, their listings, ranged reads and uploads.

pyarrow speaks S3, Google Cloud Storage, Azure and HDFS; fsspec, if it is installed, knows others.
This package is the only one that calls either. Every call is retried within a time limit, and each
error names the address and what to do. Nothing here trusts a listing to be complete.
"""
