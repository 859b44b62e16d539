// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package ibv calls libibverbs, and libmlx5 for the DC transport, which are opened
// at run time: neither a C compiler nor a header is needed to build, and a program
// runs on hosts that have no such library.
//
// It is a thin layer. Functions are named as in rdma-core's manual pages, objects are
// freed by their owner in the order of that manual, and what may be called at once is
// what the manual says (all of it, one object's end excepted). No memory of Go's is
// kept by C beyond a call, except what the caller registers.
package ibv

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"
)

// ErrUnavailable says that this host or this program has no usable libibverbs.
var ErrUnavailable = errors.New("RDMA verbs are not available")

// Lib is an open libibverbs. It stays open for the life of the process.
type Lib struct {
	errnoFn uintptr

	getDeviceList, freeDeviceList, getDeviceName, openDevice, closeDevice uintptr
	queryDevice, queryPort, allocPD, deallocPD, regMR, deregMR            uintptr
	createChannel, destroyChannel, createCQ, destroyCQ, getCQEvent, ackCQ uintptr
	createQP, modifyQP, queryQP, destroyQP, createSRQ, destroySRQ         uintptr
	createAH, destroyAH, getAsyncEvent, ackAsyncEvent                     uintptr

	regDMABufMR, qpToQPEx, queryGIDTable uintptr // 0 with an old library

	mlx5 mlx5Lib
}

// LibraryName is what is opened.
const LibraryName = "libibverbs.so.1"

// Load opens libibverbs. Errors wrap ErrUnavailable.
func Load() (*Lib, error) {
	h, err := dlopen(LibraryName)
	if err != nil {
		return nil, err
	}
	l := new(Lib)
	err = symbols(LibraryName, h, map[string]*uintptr{
		"ibv_get_device_list":      &l.getDeviceList,
		"ibv_free_device_list":     &l.freeDeviceList,
		"ibv_get_device_name":      &l.getDeviceName,
		"ibv_open_device":          &l.openDevice,
		"ibv_close_device":         &l.closeDevice,
		"ibv_query_device":         &l.queryDevice,
		"ibv_query_port":           &l.queryPort,
		"ibv_alloc_pd":             &l.allocPD,
		"ibv_dealloc_pd":           &l.deallocPD,
		"ibv_reg_mr":               &l.regMR,
		"ibv_dereg_mr":             &l.deregMR,
		"ibv_create_comp_channel":  &l.createChannel,
		"ibv_destroy_comp_channel": &l.destroyChannel,
		"ibv_create_cq":            &l.createCQ,
		"ibv_destroy_cq":           &l.destroyCQ,
		"ibv_get_cq_event":         &l.getCQEvent,
		"ibv_ack_cq_events":        &l.ackCQ,
		"ibv_create_qp":            &l.createQP,
		"ibv_modify_qp":            &l.modifyQP,
		"ibv_query_qp":             &l.queryQP,
		"ibv_destroy_qp":           &l.destroyQP,
		"ibv_create_srq":           &l.createSRQ,
		"ibv_destroy_srq":          &l.destroySRQ,
		"ibv_create_ah":            &l.createAH,
		"ibv_destroy_ah":           &l.destroyAH,
		"ibv_get_async_event":      &l.getAsyncEvent,
		"ibv_ack_async_event":      &l.ackAsyncEvent,
		"__errno_location":         &l.errnoFn, // libc's, found through libibverbs
	}, map[string]*uintptr{
		"ibv_reg_dmabuf_mr":    &l.regDMABufMR,
		"ibv_qp_to_qp_ex":      &l.qpToQPEx,
		"_ibv_query_gid_table": &l.queryGIDTable,
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// ptr makes a pointer of an address that C has given us.
func ptr[T any](a uintptr) *T { return *(**T)(unsafe.Pointer(&a)) }

// pinned calls f with the address of *v, which stays where it is meanwhile.
func pinned[T any](v *T, f func(uintptr)) {
	var p runtime.Pinner
	p.Pin(v)
	f(uintptr(unsafe.Pointer(v)))
	p.Unpin()
}

func goString(a uintptr) string {
	var b []byte
	for ; ; a++ {
		c := *ptr[byte](a)
		if c == 0 {
			return string(b)
		}
		b = append(b, c)
	}
}

// object calls a function that returns an object, or NULL and errno.
func (l *Lib) object(what string, fn uintptr, args ...uintptr) (uintptr, error) {
	r, errno := l.callErrno(fn, args...)
	if r == 0 {
		if errno == 0 {
			errno = syscall.EINVAL // some providers forget it
		}
		return 0, fmt.Errorf("%s: %w", what, errno)
	}
	return r, nil
}

// status calls a function that returns 0, or an errno, or -1 and errno.
func (l *Lib) status(what string, fn uintptr, args ...uintptr) error {
	r, errno := l.callErrno(fn, args...)
	switch n := int32(r); {
	case n == 0:
		return nil
	case n > 0:
		errno = syscall.Errno(n)
	}
	return fmt.Errorf("%s: %w", what, errno)
}

// eachDevice calls f with the devices until it returns false. They are gone when
// eachDevice has returned.
func (l *Lib) eachDevice(f func(dev uintptr, name string) bool) error {
	n := new(int32)
	var list uintptr
	var err error
	pinned(n, func(np uintptr) { list, err = l.object("ibv_get_device_list", l.getDeviceList, np) })
	if err != nil {
		return err
	}
	defer Call(l.freeDeviceList, list)
	for i := range uintptr(*n) {
		dev := *ptr[uintptr](list + i*unsafe.Sizeof(list))
		if !f(dev, goString(Call(l.getDeviceName, dev))) {
			break
		}
	}
	return nil
}

// Devices returns the names of all RDMA devices that have a user-space driver here.
func (l *Lib) Devices() ([]string, error) {
	var names []string
	err := l.eachDevice(func(_ uintptr, name string) bool {
		names = append(names, name)
		return true
	})
	return names, err
}

// Context is an open device.
type Context struct {
	lib  *Lib
	h    uintptr
	mlx5 bool
}

// Open opens the device called name.
func (l *Lib) Open(name string) (*Context, error) {
	var c *Context
	var oerr error
	err := l.eachDevice(func(dev uintptr, n string) bool {
		if n != name {
			return true
		}
		h, err := l.object("ibv_open_device", l.openDevice, dev)
		if err != nil {
			oerr = err
			return false
		}
		c = &Context{lib: l, h: h, mlx5: l.mlx5.supports(dev)}
		return false
	})
	switch {
	case err != nil:
		return nil, err
	case oerr != nil:
		return nil, oerr
	case c == nil:
		return nil, fmt.Errorf("no such RDMA device: %w", syscall.ENODEV)
	}
	return c, nil
}

// Close closes the device. All objects made from it must be gone.
func (c *Context) Close() error {
	return c.lib.status("ibv_close_device", c.lib.closeDevice, c.h)
}

// QueryDevice returns the device's limits.
func (c *Context) QueryDevice() (DeviceAttr, error) {
	a := new(DeviceAttr)
	var err error
	pinned(a, func(p uintptr) { err = c.lib.status("ibv_query_device", c.lib.queryDevice, c.h, p) })
	return *a, err
}

// QueryPort returns what a port is and in which state.
func (c *Context) QueryPort(port uint8) (PortAttr, error) {
	a := new(PortAttr)
	var err error
	pinned(a, func(p uintptr) { err = c.lib.status("ibv_query_port", c.lib.queryPort, c.h, uintptr(port), p) })
	return *a, err
}

// QueryGIDTable returns the entries in use of all ports' address tables. An old library
// has no such call: syscall.EOPNOTSUPP.
func (c *Context) QueryGIDTable() ([]GIDEntry, error) {
	if c.lib.queryGIDTable == 0 {
		return nil, fmt.Errorf("ibv_query_gid_table: %w", syscall.EOPNOTSUPP)
	}
	table := make([]GIDEntry, 1024)
	var n int64
	var errno syscall.Errno
	pinned(&table[0], func(p uintptr) {
		var r uintptr
		r, errno = c.lib.callErrno(c.lib.queryGIDTable, c.h, p, uintptr(len(table)), 0, unsafe.Sizeof(table[0]))
		n = int64(r)
	})
	if n < 0 {
		return nil, fmt.Errorf("ibv_query_gid_table: %w", max(errno, syscall.Errno(-n)))
	}
	return table[:n], nil
}

// AsyncFD is the descriptor on which asynchronous events are read. It is libibverbs'
// own: duplicate it for a poller.
func (c *Context) AsyncFD() int { return int(ptr[contextHead](c.h).AsyncFD) }

// GetAsyncEvent reads an event and acknowledges it; false if there is none. AsyncFD
// must be non-blocking.
func (c *Context) GetAsyncEvent() (AsyncEvent, bool, error) {
	e := new(AsyncEvent)
	var err error
	pinned(e, func(p uintptr) {
		if err = c.lib.status("ibv_get_async_event", c.lib.getAsyncEvent, c.h, p); err == nil {
			Call(c.lib.ackAsyncEvent, p)
		}
	})
	if errors.Is(err, syscall.EAGAIN) {
		return AsyncEvent{}, false, nil
	}
	return *e, err == nil, err
}

// Port is the number in an event of a port.
func (e AsyncEvent) Port() uint8 { return uint8(e.Element) }

// ops are the functions that the device's driver has put into its context.
func (c *Context) ops() *contextOps { return &ptr[contextHead](c.h).Ops }

// PD is a protection domain.
type PD struct {
	c *Context
	h uintptr
}

// AllocPD makes a protection domain.
func (c *Context) AllocPD() (*PD, error) {
	h, err := c.lib.object("ibv_alloc_pd", c.lib.allocPD, c.h)
	if err != nil {
		return nil, err
	}
	return &PD{c, h}, nil
}

// Dealloc frees it.
func (p *PD) Dealloc() error { return p.c.lib.status("ibv_dealloc_pd", p.c.lib.deallocPD, p.h) }

// MR is registered memory.
type MR struct {
	lib        *Lib
	h          uintptr
	LKey, RKey uint32
}

// RegMR registers n bytes at addr, which must stay mapped until Dereg.
func (p *PD) RegMR(addr uintptr, n int, access int) (*MR, error) {
	l := p.c.lib
	h, err := l.object("ibv_reg_mr", l.regMR, p.h, addr, uintptr(n), uintptr(access))
	if err != nil {
		return nil, err
	}
	m := ptr[mrHead](h)
	return &MR{l, h, m.LKey, m.RKey}, nil
}

// RegDMABuf registers n bytes at offset of a dma-buf, to be reached at the remote
// address iova.
func (p *PD) RegDMABuf(fd int, offset uint64, n int, iova uint64, access int) (*MR, error) {
	l := p.c.lib
	if l.regDMABufMR == 0 {
		return nil, fmt.Errorf("ibv_reg_dmabuf_mr: this libibverbs has none (rdma-core 34 has): %w", syscall.EOPNOTSUPP)
	}
	h, err := l.object("ibv_reg_dmabuf_mr", l.regDMABufMR, p.h, uintptr(offset), uintptr(n), uintptr(iova), uintptr(fd), uintptr(access))
	if err != nil {
		return nil, err
	}
	m := ptr[mrHead](h)
	return &MR{l, h, m.LKey, m.RKey}, nil
}

// Handle is what a work request calls the registration.
func (m *MR) Handle() uintptr { return m.h }

// Dereg ends the registration. When it has returned nil no key of it is good.
func (m *MR) Dereg() error { return m.lib.status("ibv_dereg_mr", m.lib.deregMR, m.h) }

// MW is a type 2 memory window.
type MW struct {
	c *Context
	h uintptr
}

// AllocMW makes a window, bound to nothing.
func (p *PD) AllocMW() (*MW, error) {
	fn := p.c.ops().AllocMW
	if fn == 0 {
		return nil, fmt.Errorf("ibv_alloc_mw: %w", syscall.EOPNOTSUPP)
	}
	h, err := p.c.lib.object("ibv_alloc_mw", fn, p.h, MWType2)
	if err != nil {
		return nil, err
	}
	return &MW{p.c, h}, nil
}

// Handle is what a work request calls the window.
func (m *MW) Handle() uintptr { return m.h }

// RKey is the window's present key.
func (m *MW) RKey() uint32 { return ptr[mwHead](m.h).RKey }

// SetRKey records the key that a bind gave the window, which ibv_post_send leaves to
// its caller.
func (m *MW) SetRKey(k uint32) { ptr[mwHead](m.h).RKey = k }

// Dealloc frees the window, and with it what is bound.
func (m *MW) Dealloc() error {
	return m.c.lib.status("ibv_dealloc_mw", m.c.ops().DeallocMW, m.h)
}

// AH is an address handle.
type AH struct {
	lib *Lib
	h   uintptr
}

// CreateAH makes an address handle.
func (p *PD) CreateAH(a AHAttr) (*AH, error) {
	l := p.c.lib
	attr := &a
	var h uintptr
	var err error
	pinned(attr, func(ap uintptr) { h, err = l.object("ibv_create_ah", l.createAH, p.h, ap) })
	if err != nil {
		return nil, err
	}
	return &AH{l, h}, nil
}

// Destroy frees the handle.
func (a *AH) Destroy() error { return a.lib.status("ibv_destroy_ah", a.lib.destroyAH, a.h) }
