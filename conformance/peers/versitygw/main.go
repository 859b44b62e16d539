// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Command versitygw runs versitygw's integration tests, unchanged and one after the
// other, against any S3 server, and reports each on standard output as a line of JSON
// with name, status (PASS, FAIL or NA) and message, which is mint's form.
//
//	versitygw ENDPOINT [TEST...]
//
// Keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Without names all tests
// run, but for those in the table leftOut, which are reported as NA.
//
// versitygw's own command "test full-flow" does the same, but a test that panics (two
// do, where a server is not versitygw) ends it, and what one test leaves behind fails
// others. Here a panic is a failure of its test, and buckets that a test leaves are
// removed after it.
//
// Exit status: 0 all ran, however they ended; 1 they could not be run.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/tests/integration"
)

// leftOut says which tests do not run, by the beginning of their names, and why.
var leftOut = []struct{ prefix, why string }{
	{"IAM", "needs versitygw's IAM service"},
	{"S3IAM", "needs versitygw's IAM service"},
	{"AccessControl_", "makes users by versitygw's admin API"},
	{"NoAclMode_", "needs a mode of versitygw"},
	{"WebsiteHosting_", "needs versitygw's website endpoint"},
	{"GetObjectRetention_success", waits},
	{"PutObjectRetention_overwrite_compliance_with_compliance", waits},
	{"PutObjectRetention_rewrite_same_date", waits},
	{"PutObjectRetention_success", waits},
	{"PutObject_with_object_lock", waits},
}

const waits = "waits more than 10 s for a lock to expire"

// report is one line of output.
type report struct {
	Name    string `json:"name"`
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: versitygw ENDPOINT [TEST...]")
		os.Exit(1)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "versitygw:", err)
		os.Exit(1)
	}
}

func run(endpoint string, names []string) error {
	// The tests print in words and colours of their own.
	lines := json.NewEncoder(os.Stdout)
	os.Stdout = os.Stderr
	conf := integration.NewS3Conf(integration.WithEndpoint(endpoint), integration.WithRegion("us-east-1"),
		integration.WithAccess(os.Getenv("AWS_ACCESS_KEY_ID")), integration.WithSecret(os.Getenv("AWS_SECRET_ACCESS_KEY")))
	tests := integration.GetIntTests()
	all := len(names) == 0
	if all {
		for name := range tests {
			names = append(names, name)
		}
		slices.Sort(names)
	}
	for _, name := range names {
		test, ok := tests[name]
		if !ok {
			return fmt.Errorf("there is no test %q", name)
		}
		r := report{Name: name, Status: "NA", Message: whyLeftOut(name)}
		if r.Message == "" || !all {
			r.Status, r.Message = one(conf, test)
			if err := wipe(conf.GetClient()); err != nil {
				return fmt.Errorf("clean up after %s: %w", name, err)
			}
		}
		if err := lines.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

func whyLeftOut(name string) string {
	for _, l := range leftOut {
		if strings.HasPrefix(name, l.prefix) {
			return l.why
		}
	}
	return ""
}

// one runs a test. Not every failure is in the error that it returns.
func one(conf *integration.S3Conf, test integration.IntTest) (status, message string) {
	defer func() {
		if r := recover(); r != nil {
			status, message = "FAIL", fmt.Sprint("panic: ", r)
		}
	}()
	failed, skipped := integration.FailCount.Load(), integration.SkipCount.Load()
	switch err := test(conf); {
	case err != nil:
		return "FAIL", err.Error()
	case integration.FailCount.Load() != failed:
		return "FAIL", ""
	case integration.SkipCount.Load() != skipped:
		return "NA", "skips itself"
	}
	return "PASS", ""
}

// wipe removes the buckets that a test has left. What is under a lock stays: every
// test has buckets of its own, so that it disturbs only those that list all.
func wipe(client *s3.Client) error {
	ctx := context.Background()
	listed, err := client.ListBuckets(ctx, &s3.ListBucketsInput{})
	if err != nil {
		return err
	}
	for _, b := range listed.Buckets {
		versions := s3.NewListObjectVersionsPaginator(client, &s3.ListObjectVersionsInput{Bucket: b.Name})
		for versions.HasMorePages() {
			page, err := versions.NextPage(ctx)
			if err != nil {
				break // as locked: it stays
			}
			for _, v := range page.Versions {
				_, _ = client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: b.Name, Key: v.Key, VersionId: v.VersionId, BypassGovernanceRetention: aws.Bool(true)})
			}
			for _, m := range page.DeleteMarkers {
				_, _ = client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: b.Name, Key: m.Key, VersionId: m.VersionId})
			}
		}
		_, _ = client.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: b.Name})
	}
	return nil
}
