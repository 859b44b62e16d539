// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64) && !noverbs

package ibv

import (
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/cgocall"
)

// ownLoop is a queue pair that is connected to itself.
type ownLoop struct {
	ctx *Context
	pd  *PD
	cq  *CQ
	qp  *QP
	mr  *MR
	mem []byte
}

func newOwnLoop(tb testing.TB) *ownLoop {
	tb.Helper()
	lib, err := Load()
	if err != nil {
		tb.Skip(err)
	}
	names, err := lib.Devices()
	if err != nil || len(names) == 0 {
		tb.Skipf("NOT TESTED, no RDMA device: %v", err)
	}
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	l := new(ownLoop)
	l.ctx, err = lib.Open(names[0])
	must(err)
	tb.Cleanup(func() { must(l.ctx.Close()) })
	l.pd, err = l.ctx.AllocPD()
	must(err)
	tb.Cleanup(func() { must(l.pd.Dealloc()) })
	l.cq, err = l.ctx.CreateCQ(256, nil)
	must(err)
	tb.Cleanup(func() { must(l.cq.Destroy()) })
	l.qp, err = l.pd.CreateRC(l.cq, QPCap{MaxSendWR: 128, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
	must(err)
	tb.Cleanup(func() { must(l.qp.Destroy()) })
	l.mem, err = unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(err)
	tb.Cleanup(func() { unix.Munmap(l.mem) })
	l.mr, err = l.pd.RegMR(uintptr(unsafe.Pointer(&l.mem[0])), len(l.mem), AccessLocalWrite|AccessRemoteWrite|AccessRemoteRead)
	must(err)
	tb.Cleanup(func() { must(l.mr.Dereg()) })

	gids, err := l.ctx.QueryGIDTable()
	must(err)
	g := gids[len(gids)-1]
	port, err := l.ctx.QueryPort(uint8(g.Port))
	must(err)
	must(l.qp.Modify(QPAttr{State: QPStateInit, PortNum: uint8(g.Port), AccessFlags: AccessRemoteRead | AccessRemoteWrite},
		AttrState|AttrPkeyIndex|AttrPort|AttrAccess))
	rtr := QPAttr{State: QPStateRTR, PathMTU: port.ActiveMTU, DestQPNum: l.qp.Num, MaxDestRdAtomic: 1, MinRNRTimer: 12,
		AH: AHAttr{IsGlobal: 1, PortNum_: uint8(g.Port), DLID: port.LID, GRH: GlobalRoute{SGIDIndex: uint8(g.Index), HopLimit: 1}}}
	*(*[16]byte)(unsafe.Pointer(&rtr.AH.GRH.DGID)) = g.GID
	must(l.qp.Modify(rtr, AttrState|AttrAV|AttrPathMTU|AttrDestQPN|AttrRQPSN|AttrMaxDestRd|AttrMinRNRTimer))
	must(l.qp.Modify(QPAttr{State: QPStateRTS, Timeout: 16, RetryCnt: 3, MaxRdAtomic: 1},
		AttrState|AttrTimeout|AttrRetryCnt|AttrRNRRetry|AttrSQPSN|AttrMaxRdAtomic))
	return l
}

// write returns a request that copies 8 bytes from the start of the memory to offset 64.
func (l *ownLoop) write() (*SendWR, *SGE) {
	base := uint64(uintptr(unsafe.Pointer(&l.mem[0])))
	sge := &SGE{Addr: base, Length: 8, LKey: l.mr.LKey}
	return &SendWR{ID: 5, SGList: uintptr(unsafe.Pointer(sge)), NumSGE: 1, Opcode: WRWrite, Flags: SendSignaled,
		Remote: base + 64, RKey: l.mr.RKey}, sge
}

func TestOwnLoop(t *testing.T) {
	l := newOwnLoop(t)
	if s, err := l.qp.State(); err != nil || s != QPStateRTS {
		t.Fatalf("state %d, %v", s, err)
	}
	copy(l.mem, "12345678")
	wr, sge := l.write()
	if _, err := l.qp.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	wc := make([]WC, 4)
	for {
		n, err := l.cq.Poll(wc)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			if n != 1 || wc[0].ID != 5 || wc[0].Status != WCSuccess || wc[0].QPNum != l.qp.Num {
				t.Fatalf("%d completions, the first %+v", n, wc[0])
			}
			break
		}
	}
	if string(l.mem[64:72]) != "12345678" {
		t.Errorf("memory is %q", l.mem[64:72])
	}
	_ = sge
}

// BenchmarkPostPoll posts an 8-byte write and polls until it has completed, and counts the
// calls too: their price is what the three ways differ in.
func BenchmarkPostPoll(b *testing.B) {
	for _, way := range []struct {
		name string
		ok   bool
		call func(fn, x, y, z uintptr) uintptr
	}{
		{"trampoline", true, func(fn, x, y, z uintptr) uintptr { return Call(fn, x, y, z) }},
		{"cgo", cgocall.Available, cgocall.Call3},
		{"purego", true, func(fn, x, y, z uintptr) uintptr { r, _, _ := purego.SyscallN(fn, x, y, z); return r }},
	} {
		b.Run(way.name, func(b *testing.B) {
			if !way.ok {
				b.Skip("built without cgo")
			}
			l := newOwnLoop(b)
			wr, sge := l.write()
			wc := make([]WC, 16)
			wrp, bad, wcp := uintptr(unsafe.Pointer(wr)), uintptr(unsafe.Pointer(l.qp.bad)), uintptr(unsafe.Pointer(&wc[0]))
			polls := 0
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if r := int32(way.call(l.qp.postSend, l.qp.h, wrp, bad)); r != 0 {
					b.Fatal(postError("post", r))
				}
				for {
					polls++
					n := int32(way.call(l.cq.poll, l.cq.h, uintptr(len(wc)), wcp))
					if n > 0 {
						break
					}
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(polls)/float64(b.N), "polls/op")
			_, _ = sge, wc
		})
		b.Run(way.name+"/emptyPoll", func(b *testing.B) {
			if !way.ok {
				b.Skip("built without cgo")
			}
			l := newOwnLoop(b)
			wc := make([]WC, 16)
			wcp := uintptr(unsafe.Pointer(&wc[0]))
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				way.call(l.cq.poll, l.cq.h, uintptr(len(wc)), wcp)
			}
		})
	}
}
