// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bench

import (
	"os"
	"path/filepath"
	"testing"
)

// shardFiles makes what MinIO's drives have of an object, zeros but for its layout.
func shardFiles(t *testing.T, size, data, parity int) (folders []string) {
	t.Helper()
	n := 0
	for left := size; left > 0; left -= blockSize {
		n += hashSize + (min(left, blockSize)+data-1)/data
	}
	for range data + parity {
		folder := t.TempDir()
		dir := filepath.Join(folder, "some-id")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "part.1"), make([]byte, n), 0o600); err != nil {
			t.Fatal(err)
		}
		folders = append(folders, folder)
	}
	return folders
}

func TestFloors(t *testing.T) {
	for _, c := range []struct{ size, data, parity int }{
		{200 * kib, 2, 2}, {mib, 2, 2}, {5*mib/2 + 3, 2, 2}, {10*mib + 1, 3, 2}, {4 * mib, 12, 4},
	} {
		dir := t.TempDir()
		f, err := newFloor(c.size, shardFiles(t, c.size, c.data, c.parity), make([]byte, c.size), dir)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		defer f.close()
		if f.base.Data != c.data || f.base.Parity != c.parity {
			t.Errorf("%+v: taken for %d+%d", c, f.base.Data, f.base.Parity)
		}
		parts, err := f.measure()
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		for _, name := range floorNames {
			if parts.cpu[name] <= 0 || parts.took[name] <= 0 {
				t.Errorf("%+v: %s took %v s and %v s of CPU per GiB", c, name, parts.took[name], parts.cpu[name])
			}
		}
		all := floorsOf(f.base, []floorParts{parts, parts})
		if all.Read.CPU.N != 2 || all.GetCPU(false) >= all.GetCPU(true) || all.PutCPU(false) >= all.PutCPU(true) {
			t.Errorf("%+v: %+v", c, all)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*", "*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestFloorOfAnInlineObject(t *testing.T) {
	var folders []string
	for range 4 {
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, "xl.meta"), make([]byte, 33*kib), 0o600); err != nil {
			t.Fatal(err)
		}
		folders = append(folders, folder)
	}
	f, err := newFloor(64*kib, folders, make([]byte, 64*kib), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if _, err := f.measure(); err != nil {
		t.Fatal(err)
	}
}

func TestFloorOfNothing(t *testing.T) {
	if f, err := newFloor(mib, []string{t.TempDir()}, make([]byte, mib), t.TempDir()); err == nil {
		f.close()
		t.Error("no error though there is no object")
	}
}
