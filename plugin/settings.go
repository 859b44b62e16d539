// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/shm"
	"github.com/s3rdma/s3rdma/rdmaio/staging"
	"github.com/s3rdma/s3rdma/rdmaio/tcp"
	"github.com/s3rdma/s3rdma/rdmaio/verbs"
)

// Setting is one thing that an operator can set, for a server's flags and help.
type Setting struct {
	// Name is the flag without dashes: "rdma-fabric".
	Name string
	// Default is what an empty value means.
	Default string
	// Usage says in a line what it does and what values there are.
	Usage string
}

// Env is the setting's environment variable: prefix, then the name in capitals
// with underscores. Env("MINIO_") of "rdma-fabric" is "MINIO_RDMA_FABRIC".
func (s Setting) Env(prefix string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

// Settings are what an operator has set, read and checked, but not tried yet.
type Settings struct {
	// On is false if RDMA is switched off: the plugin then declines.
	On bool
	// Fabrics are the names of what is to be served, in order: shm, tcp, and verbs,
	// which is the transport rc and, where a device is mlx5, dc.
	Fabrics []string
	SHM     shm.Options
	TCP     tcp.Options
	Verbs   verbs.Options
	Staging staging.Options
	// The rest as in Config.
	StallTimeout time.Duration
	MinWindow    uint64
	AllowPeers   []netip.Prefix
	Parse        rdmaio.ParseOptions
	// ChecksumGet and ChecksumPut as in Config.
	ChecksumGet, ChecksumPut checksum.Policy
	// ETag is for the server to heed; the plugin computes none.
	ETag ETagPolicy
	// ConnectUnsigned as in Config.
	ConnectUnsigned bool
}

// fabricVerbs is what the operator calls the RDMA NICs of this host.
const fabricVerbs = "verbs"

// SettingError is a setting that cannot work.
type SettingError struct {
	// Name is the setting's, Value what it was set to.
	Name, Value string
	// Err is what is wrong and what would be right.
	Err error
}

// Error names the setting, the value and the problem.
func (e *SettingError) Error() string {
	return fmt.Sprintf("setting %s=%q: %v", e.Name, e.Value, e.Err)
}

// Unwrap returns e.Err.
func (e *SettingError) Unwrap() error { return e.Err }

// parseSetting is a Setting and where its value goes.
type parseSetting struct {
	Setting
	parse func(s *Settings, value string) error
}

// settingsTable lists every setting. A value is parsed if it is not empty.
var settingsTable = []parseSetting{
	{Setting{"rdma", "off", "serve S3 object bytes by RDMA: on or off (off declines requests with a memory descriptor)"},
		func(s *Settings, v string) (err error) { s.On, err = parseSwitch(v); return }},
	{Setting{"rdma-fabric", "shm", "transports to serve, separated by commas: shm (same host), tcp (any host), verbs (RDMA NICs: RoCE, InfiniBand)"},
		func(s *Settings, v string) error { return s.parseFabrics(v) }},
	{Setting{"rdma-staging-size", "256MiB", "registered memory that all transfers share, such as 1GiB"},
		func(s *Settings, v string) (err error) { s.Staging.Size, err = parseSize(v, 1<<20, 1<<46); return }},
	{Setting{"rdma-staging-slab", "1MiB", "unit in which staging memory is lent, a multiple of the page size"},
		func(s *Settings, v string) (err error) {
			n, err := parseSize(v, 4096, 1<<30)
			s.Staging.SlabSize = int(n)
			return err
		}},
	{Setting{"rdma-staging-wait", "2s", "how long a request waits for staging memory before 503 SlowDown"},
		func(s *Settings, v string) (err error) { s.Staging.Wait, err = parseDuration(v); return }},
	{Setting{"rdma-staging-hugepages", "auto", "huge pages for staging memory: auto, on (refuse to start without) or off"},
		func(s *Settings, v string) (err error) { s.Staging.HugePages, err = staging.ParseHugePages(v); return }},
	{Setting{"rdma-allow-peers", "", "networks whose hosts may connect and be named by a descriptor, such as 10.1.0.0/16,fd00::/8; empty allows only the host that sends the request"},
		func(s *Settings, v string) (err error) { s.AllowPeers, err = parsePrefixes(v); return }},
	{Setting{"rdma-stall-timeout", DefaultStallTimeout.String(), "how long a transfer may make no progress before it fails"},
		func(s *Settings, v string) (err error) { s.StallTimeout, err = parseDuration(v); return }},
	{Setting{"rdma-session-idle", "10m", "how long a connected client may be idle before its session ends"},
		func(s *Settings, v string) error {
			d, err := parseDuration(v)
			s.SHM.IdleAfter, s.TCP.IdleAfter, s.Verbs.IdleAfter = d, d, d
			return err
		}},
	{Setting{"rdma-max-sessions", "1024", "how many clients may be connected at once, for each transport"},
		func(s *Settings, v string) error {
			n, err := parseCount(v, 1, 1<<20)
			s.SHM.MaxSessions, s.TCP.MaxSessions, s.Verbs.MaxSessions = n, n, n
			return err
		}},
	{Setting{"rdma-max-sessions-per-user", "64", "how many sessions one identity may have, for each transport"},
		func(s *Settings, v string) error {
			n, err := parseCount(v, 1, 1<<20)
			s.SHM.MaxSessionsPerOwner, s.TCP.MaxPerOwner, s.Verbs.MaxPerOwner = n, n, n
			return err
		}},
	{Setting{"rdma-min-size", "0", "windows smaller than this are declined, so that clients use HTTP, such as 64KiB"},
		func(s *Settings, v string) error {
			n, err := parseSize(v, 0, rdmaio.MaxWindow)
			s.MinWindow = uint64(n)
			return err
		}},
	{Setting{"rdma-checksum-get", "none", "checksums of a GET, at least: region (over the bytes that moved, for clients that look), envelope (a signature over the whole message), both or none; requests may ask for more"},
		func(s *Settings, v string) (err error) { s.ChecksumGet, err = checksum.ParsePolicy(v); return }},
	{Setting{"rdma-checksum-put", "region", "checksums of a PUT, at least, as above; those that a request declares are verified always"},
		func(s *Settings, v string) (err error) { s.ChecksumPut, err = checksum.ParsePolicy(v); return }},
	{Setting{"rdma-etag", "auto", "the ETag of what is stored by RDMA: md5, fast (random, in the form of a multipart upload's; no MD5 is computed) or auto (md5 unless the request brings another checksum of the whole object). For servers that leave the choice"},
		func(s *Settings, v string) (err error) { s.ETag, err = ParseETagPolicy(v); return }},
	{Setting{"rdma-shm-socket", "", "path of the unix socket of the shm fabric; empty makes one in a private directory"},
		func(s *Settings, v string) error { s.SHM.Path = v; return nil }},
	{Setting{"rdma-shm-mode", "0600", "file mode of that socket, in octal: who may connect to it (0666: every local user, who still needs a signed connect)"},
		func(s *Settings, v string) (err error) { s.SHM.Mode, err = parseMode(v); return }},
	{Setting{"rdma-shm-uids", "", "numeric user ids whose processes may connect, separated by commas; empty allows all that may open the socket"},
		func(s *Settings, v string) (err error) { s.SHM.AllowUIDs, err = parseUIDs(v); return }},
	{Setting{"rdma-tcp-listen", ":0", "host:port on which the tcp fabric waits for data connections (port 0: any free one)"},
		func(s *Settings, v string) error { s.TCP.Listen = v; return nil }},
	{Setting{"rdma-tcp-advertise", "", "host or host:port that tcp clients are told to connect to; empty: where their HTTP request came to"},
		func(s *Settings, v string) error { s.TCP.Advertise = v; return nil }},
	{Setting{"rdma-device", "", "rails of the verbs fabric, separated by commas, each an RDMA device (mlx5_0, mlx5_0:2 for its second port), a network interface or an IP address of one; empty: all that are there"},
		func(s *Settings, v string) (err error) { s.Verbs.Devices, err = parseNames(v); return }},
	{Setting{"rdma-gid-index", "0", "entry of the RDMA port's address table; 0 chooses by type and address, RoCE v2 first"},
		func(s *Settings, v string) (err error) { s.Verbs.GIDIndex, err = parseCount(v, 0, 255); return }},
	{Setting{"rdma-connect-signed", "on", "off lets clients that cannot sign connect an RC queue pair; the session is then the first identity's that uses it by a signed request"},
		func(s *Settings, v string) error {
			signed, err := parseSwitch(v)
			s.ConnectUnsigned = !signed
			return err
		}},
	{Setting{"rdma-self-test", "on", "test each RDMA device by a transfer to itself at start, and refuse to start with one that fails"},
		func(s *Settings, v string) (err error) { s.Verbs.SelfTest, err = parseSwitch(v); return }},
	{Setting{"rdma-peer-timeout", "5s", "how long a silent RDMA peer is taken for alive; the device's retries are chosen to end before"},
		func(s *Settings, v string) (err error) { s.Verbs.PeerTimeout, err = parseDuration(v); return }},
	{Setting{"rdma-peer-reads", "1", "RDMA READs in flight towards a client that does not say how many it takes"},
		func(s *Settings, v string) (err error) { s.Verbs.UnknownPeerReads, err = parseCount(v, 1, 255); return }},
	{Setting{"rdma-hipobj-memory", "256MiB", "memory that clients of hipobj-rc-v2 push what they store into, all of them together; what is larger is refused. 0 declines their PUTs"},
		func(s *Settings, v string) error {
			n, err := parseSize(v, 0, 1<<46)
			if s.Verbs.Landing = n; n == 0 {
				s.Verbs.Landing = -1
			}
			return err
		}},
	{Setting{"rdma-traffic-class", "0", "IP traffic class of RDMA packets: the DSCP times 4, as the switches' lossless queue needs it"},
		func(s *Settings, v string) error {
			n, err := parseCount(v, 0, 255)
			s.Verbs.TrafficClass = uint8(n)
			return err
		}},
	{Setting{"rdma-service-level", "0", "InfiniBand service level, or Ethernet priority, of RDMA packets"},
		func(s *Settings, v string) error {
			n, err := parseCount(v, 0, 15)
			s.Verbs.ServiceLevel = uint8(n)
			return err
		}},
	{Setting{"rdma-dc-key", "0xffeeddcc", "access key of the clients' DC targets (mlx5); no secret, nearly all use the default"},
		func(s *Settings, v string) (err error) { s.Verbs.DCKey, err = parseKey(v); return }},
	{Setting{"rdma-dc-initiators", "128", "DC transfers at once on each rail (mlx5)"},
		func(s *Settings, v string) (err error) { s.Verbs.DCInitiators, err = parseCount(v, 1, 1<<16); return }},
	{Setting{"rdma-base64", "off", "accept descriptors in base64: on or off"},
		func(s *Settings, v string) (err error) { s.Parse.Base64, err = parseSwitch(v); return }},
}

// SettingsTable lists the settings, for flags and help.
func SettingsTable() []Setting {
	list := make([]Setting, len(settingsTable))
	for i, s := range settingsTable {
		list[i] = s.Setting
	}
	return list
}

// ParseSettings reads settings by name; get returns "" for what is not set. Every
// setting is checked, also if rdma is off. The error joins a *[SettingError] for
// each bad one.
func ParseSettings(get func(name string) string) (Settings, error) {
	s := Settings{Fabrics: []string{rdmaio.TransportSHM.String()}, Verbs: verbs.Options{SelfTest: true}, ChecksumGet: checksum.PolicyNone}
	var errs []error
	for _, t := range settingsTable {
		v := strings.TrimSpace(get(t.Name))
		if v == "" {
			continue
		}
		if err := t.parse(&s, v); err != nil {
			errs = append(errs, &SettingError{t.Name, v, err})
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Settings{}, err
	}
	s.TCP.AllowPeers, s.Verbs.AllowPeers = s.AllowPeers, s.AllowPeers
	return s, nil
}

// Open starts the fabrics, registers the staging memory and returns the plugin,
// which owns them. Switched off, it returns a plugin that declines, and starts
// nothing. An error names the setting to change, and leaves nothing behind.
func (s Settings) Open(l EventListener) (*Plugin, error) {
	cfg := Config{
		StallTimeout: s.StallTimeout, MinWindow: s.MinWindow,
		AllowPeers: s.AllowPeers, ConnectUnsigned: s.ConnectUnsigned, Parse: s.Parse, Listener: l,
		ChecksumGet: s.ChecksumGet, ChecksumPut: s.ChecksumPut,
	}
	if !s.On {
		return New(cfg)
	}
	fail := func(name, value string, err error) (*Plugin, error) {
		for _, f := range cfg.Fabrics {
			err = errors.Join(err, f.Close())
		}
		return nil, &SettingError{name, value, err}
	}
	for _, name := range s.Fabrics {
		switch name {
		case rdmaio.TransportSHM.String():
			f, err := shm.New(s.SHM)
			if err != nil {
				return fail("rdma-shm-socket", s.SHM.Path, err)
			}
			cfg.Fabrics = append(cfg.Fabrics, f)
		case rdmaio.TransportTCP.String():
			f, err := tcp.New(s.TCP)
			if err != nil {
				return fail("rdma-tcp-listen", s.TCP.Listen, err)
			}
			cfg.Fabrics = append(cfg.Fabrics, f)
		case fabricVerbs:
			f, err := s.openVerbs()
			if err != nil {
				if len(s.Verbs.Devices) == 0 {
					return fail("rdma-fabric", strings.Join(s.Fabrics, ","), err)
				}
				return fail("rdma-device", strings.Join(s.Verbs.Devices, ","), err)
			}
			cfg.Fabrics = append(cfg.Fabrics, f...)
		}
	}
	pool, err := staging.New(s.Staging, cfg.Fabrics...)
	if err != nil {
		return fail("rdma-staging-size", humanize.IBytes(uint64(s.Staging.Size)), err)
	}
	cfg.Staging = pool
	return New(cfg)
}

// openVerbs opens this host's RDMA devices. Each fabric opens them for itself and
// registers the staging memory with them.
func (s Settings) openVerbs() ([]rdmaio.Fabric, error) {
	rc, err := verbs.New(s.Verbs)
	if err != nil {
		return nil, err
	}
	dc, err := verbs.NewDC(s.Verbs)
	switch {
	case err == nil:
		return []rdmaio.Fabric{rc, dc}, nil
	case errors.Is(err, verbs.ErrUnavailable): // not all of the devices are mlx5
		return []rdmaio.Fabric{rc}, nil
	}
	return nil, errors.Join(err, rc.Close())
}

func (s *Settings) parseFabrics(v string) error {
	s.Fabrics = nil
	for name := range strings.SplitSeq(v, ",") {
		name = strings.TrimSpace(name)
		switch name {
		case rdmaio.TransportSHM.String(), rdmaio.TransportTCP.String(), fabricVerbs:
		default:
			return fmt.Errorf("there is no fabric %q, choose from shm, tcp and verbs", name)
		}
		for _, have := range s.Fabrics {
			if have == name {
				return fmt.Errorf("%q is named twice", name)
			}
		}
		s.Fabrics = append(s.Fabrics, name)
	}
	return nil
}

func parseSwitch(v string) (bool, error) {
	switch strings.ToLower(v) {
	case "on", "true", "1", "yes":
		return true, nil
	case "off", "false", "0", "no":
		return false, nil
	}
	return false, errors.New("want on or off")
}

func parseSize(v string, least, most int64) (int64, error) {
	n, err := humanize.ParseBytes(v)
	if err != nil {
		return 0, errors.New("want a size such as 64KiB, 256MiB or 1GiB")
	}
	if n > uint64(most) || int64(n) < least {
		return 0, fmt.Errorf("want %s to %s", humanize.IBytes(uint64(least)), humanize.IBytes(uint64(most)))
	}
	return int64(n), nil
}

func parseDuration(v string) (time.Duration, error) {
	d, err := time.ParseDuration(v)
	if err != nil {
		return 0, errors.New("want a time such as 500ms, 2s or 10m")
	}
	if d <= 0 || d > 24*time.Hour {
		return 0, errors.New("want more than 0 and at most 24h")
	}
	return d, nil
}

func parseCount(v string, least, most int) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("want a number from %d to %d", least, most)
	}
	return n, nil
}

func parseNames(v string) ([]string, error) {
	var list []string
	for s := range strings.SplitSeq(v, ",") {
		if s = strings.TrimSpace(s); s == "" {
			return nil, errors.New("want names separated by commas")
		}
		list = append(list, s)
	}
	return list, nil
}

func parseKey(v string) (uint64, error) {
	n, err := strconv.ParseUint(v, 0, 64)
	if err != nil || n == 0 {
		return 0, errors.New("want a number above 0 of at most 64 bits, such as 0xffeeddcc")
	}
	return n, nil
}

func parsePrefixes(v string) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for s := range strings.SplitSeq(v, ",") {
		s = strings.TrimSpace(s)
		p, err := netip.ParsePrefix(s)
		if err != nil {
			a, aerr := netip.ParseAddr(s)
			if aerr != nil {
				return nil, fmt.Errorf("%q is neither an address nor a network such as 10.1.0.0/16", s)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		list = append(list, p.Masked())
	}
	return list, nil
}

func parseMode(v string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(v, 8, 32)
	if err != nil || n > 0o777 || n&0o600 != 0o600 {
		return 0, errors.New("want an octal mode that lets the owner read and write, such as 0600 or 0666")
	}
	return fs.FileMode(n), nil
}

func parseUIDs(v string) ([]uint32, error) {
	var list []uint32
	for s := range strings.SplitSeq(v, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is no numeric user id", strings.TrimSpace(s))
		}
		list = append(list, uint32(n))
	}
	return list, nil
}
