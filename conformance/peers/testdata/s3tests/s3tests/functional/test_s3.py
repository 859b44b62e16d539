# Copyright 2026 The s3rdma Authors
# SPDX-License-Identifier: Apache-2.0
"""Stands for ceph/s3-tests: reads the same configuration, has a prefix as it has."""
import boto3
import pytest

from . import client, config, get_prefix


@pytest.fixture(autouse=True, scope="module")
def configured():
    config()


def test_bucket():
    for section in ("s3 main", "s3 alt"):
        client(section).create_bucket(Bucket=get_prefix() + section.split()[1])
    with pytest.raises(client("s3 main").exceptions.BucketAlreadyOwnedByYou):
        client("s3 alt").create_bucket(Bucket=get_prefix() + "main")


def test_other_bucket():
    # With one prefix for all this bucket would be there.
    client("s3 main").create_bucket(Bucket=get_prefix() + "main")


def test_fails():
    assert 1 == 2


@pytest.mark.lifecycle
def test_waits():
    raise AssertionError("left out by its mark")
