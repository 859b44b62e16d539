// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// powercap is where the kernel exposes energy counters, see
// https://docs.kernel.org/power/powercap/powercap.html: a folder for each zone with the
// files name, energy_uj, and max_energy_range_uj, where the counter begins at 0 again.
const powercap = "/sys/class/powercap"

// energyMeter adds up what the machine's processor packages use. The zero meter has no
// counters, and reads 0.
type energyMeter struct {
	zones []*energyZone
	// why there are none; nil if there are.
	why error
}

type energyZone struct {
	file        string
	last, limit uint64
	total       uint64 // since the meter was made
}

// newEnergyMeter finds the packages below root. Where there are none, or they may not be
// read, why says so.
func newEnergyMeter(root string) *energyMeter {
	m := &energyMeter{}
	folders, err := filepath.Glob(filepath.Join(root, "*:*"))
	if err == nil {
		err = errors.New("the kernel exposes no energy counters here")
	}
	for _, f := range folders {
		name, nameErr := os.ReadFile(filepath.Join(f, "name"))
		if nameErr != nil || !strings.HasPrefix(string(name), "package") {
			continue
		}
		z := &energyZone{file: filepath.Join(f, "energy_uj")}
		if z.limit, err = readNumber(filepath.Join(f, "max_energy_range_uj")); err == nil {
			z.last, err = readNumber(z.file)
		}
		if err != nil {
			if errors.Is(err, fs.ErrPermission) {
				err = fmt.Errorf("only root may read energy counters: %w", err)
			}
			return &energyMeter{why: err}
		}
		m.zones = append(m.zones, z)
	}
	if len(m.zones) == 0 {
		m.why = err
	}
	return m
}

// joules is the energy used since the meter was made. It must be called more often than
// a counter's range lasts, which is minutes.
func (m *energyMeter) joules() (float64, error) {
	if m == nil {
		return 0, nil
	}
	var sum uint64
	for _, z := range m.zones {
		now, err := readNumber(z.file)
		if err != nil {
			return 0, err
		}
		if now >= z.last {
			z.total += now - z.last
		} else {
			z.total += z.limit - z.last + now
		}
		z.last = now
		sum += z.total
	}
	return float64(sum) / 1e6, nil
}

// text says in reports what energy figures are of.
func (m *energyMeter) text() string {
	if m.why != nil {
		return "not exposed here: " + m.why.Error()
	}
	return fmt.Sprintf("the whole of %d processor package(s), from the kernel's powercap counters", len(m.zones))
}

func readNumber(file string) (uint64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}
