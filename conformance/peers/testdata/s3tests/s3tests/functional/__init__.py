# Copyright 2026 The s3rdma Authors
# SPDX-License-Identifier: Apache-2.0
import configparser
import os
import random
import string

import boto3

prefix = None
_conf = configparser.RawConfigParser()


def choose_bucket_prefix(template, max_len=30):
    rand = "".join(random.choice(string.ascii_lowercase) for _ in range(12))
    return template.format(random=rand)


def config():
    global prefix
    _conf.read(os.environ["S3TEST_CONF"])
    prefix = choose_bucket_prefix(_conf.get("fixtures", "bucket prefix"))


def get_prefix():
    assert prefix is not None
    return prefix


def client(section):
    scheme = "https" if _conf.getboolean("DEFAULT", "is_secure") else "http"
    return boto3.client(
        "s3",
        endpoint_url="%s://%s:%s" % (scheme, _conf.get("DEFAULT", "host"), _conf.get("DEFAULT", "port")),
        aws_access_key_id=_conf.get(section, "access_key"),
        aws_secret_access_key=_conf.get(section, "secret_key"),
        region_name=_conf.get(section, "api_name"),
        verify=_conf.getboolean("DEFAULT", "ssl_verify"),
    )
