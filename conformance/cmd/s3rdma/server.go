// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/s3rdma/s3rdma/conformance"
)

// deviceFlags say which of this host's RDMA devices is used.
type deviceFlags struct {
	Device   []string `help:"RDMA device (mlx5_0, mlx5_0:2), network interface or address of one; several: the first that is up. Default: of all." env:"S3RDMA_DEVICE" placeholder:"NAME"`
	GIDIndex int      `name:"gid-index" help:"Entry of the port's address table; 0 chooses." env:"S3RDMA_GID_INDEX" default:"0"`
}

func (f deviceFlags) device() conformance.Device {
	return conformance.Device{Names: f.Device, GIDIndex: f.GIDIndex}
}

// serverFlags say which server is meant and who asks.
type serverFlags struct {
	Endpoint  string `help:"http://host:port or https://host:port." env:"S3RDMA_ENDPOINT,AWS_ENDPOINT_URL_S3,AWS_ENDPOINT_URL" default:"http://localhost:9000"`
	AccessKey string `help:"Access key." env:"S3RDMA_ACCESS_KEY,AWS_ACCESS_KEY_ID"`
	SecretKey string `help:"Secret key; better given in the environment." env:"S3RDMA_SECRET_KEY,AWS_SECRET_ACCESS_KEY"`
	Region    string `help:"Region to sign for." env:"S3RDMA_REGION,AWS_REGION" default:"us-east-1"`
	CACert    string `name:"ca-cert" help:"PEM file with the certificate that signed the server's." env:"S3RDMA_CA_CERT" type:"existingfile"`
	Insecure  bool   `help:"Accept any certificate."`
}

// tls returns the settings for https, nil for the system's.
func (f serverFlags) tls() (*tls.Config, error) {
	if f.CACert == "" && !f.Insecure {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: f.Insecure}
	if f.CACert != "" {
		pem, err := os.ReadFile(f.CACert)
		if err != nil {
			return nil, fmt.Errorf("--ca-cert: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--ca-cert %s: no certificate in it", f.CACert)
		}
	}
	return config, nil
}
