// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

// How MinIO lays a shard file out: for each block of the object a hash, and the block's
// share.
const (
	blockSize = mib
	hashSize  = 32
)

// Floors are what the bytes of an object of one size cost in bare loops, with nothing
// around them: CPU seconds per GiB of object bytes on one thread, and the rate. They are
// measured in turns with everything else, over the same files, of the same sizes, and
// with the memory that the transfers use: staging memory of 4 MiB, which is what the
// server lends to a transfer, and the client's registered buffer, as cold as in a
// transfer.
//
// Read, Hash and Copy are phases of one loop: for each block, the data shards are read
// from the page cache into staging memory by preadv, as they are in the server's own
// files; hashed (HighwayHash-256, one hash a shard and block); and copied to the
// client's memory, a block at once as the software fabrics do. CopyIn, Encode and HashAll
// are those of another: copied from the client's memory, parity computed (Reed-Solomon),
// data and parity hashed. Write is what the drives' part of a PUT costs: a goroutine for
// each drive writes its shard file from aligned memory, as MinIO does (1 MiB at a time,
// O_DIRECT where there is, fdatasync).
//
// MD5, Checksum and Gather are beside the floor: what an ETag that is an MD5 costs; the
// checksum (CRC64NVME) that a client declares and a server verifies; and a copy of data
// and parity to other memory, such as into the aligned buffers that O_DIRECT wants.
type Floors struct {
	Size   int64 `json:"size"`
	Data   int   `json:"data"`
	Parity int   `json:"parity"`
	// Direct tells that drives were written by O_DIRECT.
	Direct bool  `json:"odirect"`
	Read   Floor `json:"read"`
	Hash   Floor `json:"hash"`
	Copy   Floor `json:"copy"`
	CopyIn Floor `json:"copy_in"`
	Encode Floor `json:"encode"`
	// HashAll is of data and parity, per GiB of data.
	HashAll  Floor `json:"hash_all"`
	Write    Floor `json:"write"`
	MD5      Floor `json:"md5"`
	Checksum Floor `json:"checksum"`
	Gather   Floor `json:"gather"`
}

// Floor is one loop, or a phase of one.
type Floor struct {
	// CPU is in seconds per GiB of object bytes, Rate in GiB of them per second.
	CPU  Spread `json:"cpu_s_per_gib"`
	Rate Spread `json:"gib_per_s"`
}

// GetCPU is the floor of a GET: read, hash, and the copy if the fabric makes it by CPU.
func (f Floors) GetCPU(software bool) float64 {
	sum := f.Read.CPU.Median + f.Hash.CPU.Median
	if software {
		sum += f.Copy.CPU.Median
	}
	return sum
}

// PutCPU is the floor of a PUT: the copy if the fabric makes it by CPU, encode, hash
// and write.
func (f Floors) PutCPU(software bool) float64 {
	sum := f.Encode.CPU.Median + f.HashAll.CPU.Median + f.Write.CPU.Median
	if software {
		sum += f.CopyIn.CPU.Median
	}
	return sum
}

// cpu is the floor of an operation.
func (f Floors) cpu(op Op, software bool) float64 {
	if op == Get {
		return f.GetCPU(software)
	}
	return f.PutCPU(software)
}

// floorParts are one measurement of each.
type floorParts struct {
	cpu, took map[string]float64 // seconds per GiB
}

// floorNames are the parts, in the order of a transfer.
var floorNames = []string{"read", "hash", "copy", "copy in", "encode", "hash all", "write", "md5", "checksum", "gather"}

// part is the Floor of a name.
func (f *Floors) part(name string) *Floor {
	return map[string]*Floor{"read": &f.Read, "hash": &f.Hash, "copy": &f.Copy, "copy in": &f.CopyIn,
		"encode": &f.Encode, "hash all": &f.HashAll, "write": &f.Write, "md5": &f.MD5, "checksum": &f.Checksum, "gather": &f.Gather}[name]
}

// floorsOf puts repeated measurements together.
func floorsOf(base Floors, all []floorParts) Floors {
	for _, name := range floorNames {
		var cpu, rate []float64
		for _, p := range all {
			if t, ok := p.took[name]; ok {
				cpu, rate = append(cpu, p.cpu[name]), append(rate, ratio(1, t))
			}
		}
		*base.part(name) = Floor{CPU: spreadOf(cpu), Rate: spreadOf(rate)}
	}
	return base
}

// seconds is how long one GiB takes in the floor's loop on one thread, and for a PUT
// the drives' writes after it.
func (f Floors) seconds(op Op, software bool) float64 {
	parts := []Floor{f.Read, f.Hash}
	extra := f.Copy
	if op == Put {
		parts, extra = []Floor{f.Encode, f.HashAll, f.Write}, f.CopyIn
	}
	if software {
		parts = append(parts, extra)
	}
	sum := 0.0
	for _, p := range parts {
		sum += ratio(1, p.Rate.Median)
	}
	return sum
}
