# Copyright 2026 The s3rdma Authors
# SPDX-License-Identifier: Apache-2.0
"""Gives each of Ceph's s3-tests a prefix of its own for its buckets.

Before each test the suite removes all buckets with the prefix, which is one for the
whole run: a single bucket that a server does not let go fails every later test.
"""
import sys


def pytest_runtest_setup(item):
    for name in ("s3tests.functional", "s3tests_boto3.functional"):
        package = sys.modules.get(name)
        # None until the suite has read its configuration, with the first test.
        if package is not None and getattr(package, "prefix", None) is not None:
            package.prefix = package.choose_bucket_prefix(template="s3rdma-{random}-")
