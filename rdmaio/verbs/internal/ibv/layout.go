// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package ibv

// The C structures that cross the border, field for field as in infiniband/verbs.h
// of rdma-core; TestLayout compares them with the header. Pointers are uintptr: the
// memory behind them is C's, or is kept alive by whoever fills them in.
// libibverbs promises not to change these (they are part of its ABI).

// DeviceAttr is struct ibv_device_attr.
type DeviceAttr struct {
	FWVer                                                         [64]byte
	NodeGUID, SysImageGUID                                        uint64
	MaxMRSize, PageSizeCap                                        uint64
	VendorID, VendorPartID, HWVer                                 uint32
	MaxQP, MaxQPWR                                                int32
	CapFlags                                                      uint32
	MaxSGE, MaxSGERd, MaxCQ, MaxCQE, MaxMR, MaxPD                 int32
	MaxQPRdAtom, MaxEERdAtom, MaxResRdAtom                        int32
	MaxQPInitRdAtom, MaxEEInitRdAtom                              int32
	AtomicCap                                                     int32
	MaxEE, MaxRDD, MaxMW, MaxRawIPv6QP, MaxRawEthyQP, MaxMcastGrp int32
	MaxMcastQPAttach, MaxTotalMcastQPAttach                       int32
	MaxAH, MaxFMR, MaxMapPerFMR, MaxSRQ, MaxSRQWR, MaxSRQSGE      int32
	MaxPkeys                                                      uint16
	LocalCAAckDelay, PhysPortCnt                                  uint8
}

// PortAttr is struct ibv_port_attr.
type PortAttr struct {
	State, MaxMTU, ActiveMTU, GIDTblLen                            int32
	CapFlags, MaxMsgSz, BadPkeyCntr, QkeyViolCntr                  uint32
	PkeyTblLen, LID, SMLID                                         uint16
	LMC, MaxVLNum, SMSL, SubnetTimeout, InitTypeReply, ActiveWidth uint8
	ActiveSpeed, PhysState, LinkLayer, Flags                       uint8
	CapFlags2                                                      uint16
}

// QPCap is struct ibv_qp_cap.
type QPCap struct {
	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInlineData uint32
}

// QPInitAttr is struct ibv_qp_init_attr.
type QPInitAttr struct {
	Context, SendCQ, RecvCQ, SRQ uintptr
	Cap                          QPCap
	Type, SQSigAll               int32
}

// RxHashConf is struct ibv_rx_hash_conf.
type RxHashConf struct {
	Function, KeyLen uint8
	Key              uintptr
	FieldsMask       uint64
}

// QPInitAttrEx is struct ibv_qp_init_attr_ex.
type QPInitAttrEx struct {
	Context, SendCQ, RecvCQ, SRQ uintptr
	Cap                          QPCap
	Type, SQSigAll               int32
	CompMask                     uint32
	PD, XRCD                     uintptr
	CreateFlags                  uint32
	MaxTSOHeader                 uint16
	RWQIndTbl                    uintptr
	RxHash                       RxHashConf
	SourceQPN                    uint32
	SendOpsFlags                 uint64
}

// GlobalRoute is struct ibv_global_route. The C union of the GID is 8-byte aligned,
// as the two halves are here; they hold network order.
type GlobalRoute struct {
	DGID                               [2]uint64
	FlowLabel                          uint32
	SGIDIndex, HopLimit, TrafficClass_ uint8
}

// AHAttr is struct ibv_ah_attr.
type AHAttr struct {
	GRH                                             GlobalRoute
	DLID                                            uint16
	SL, SrcPathBits, StaticRate, IsGlobal, PortNum_ uint8
}

// QPAttr is struct ibv_qp_attr.
type QPAttr struct {
	State, CurState, PathMTU, PathMigState              int32
	Qkey, RQPSN, SQPSN, DestQPNum, AccessFlags          uint32
	Cap                                                 QPCap
	AH, AltAH                                           AHAttr
	PkeyIndex, AltPkeyIndex                             uint16
	EnSQDAsyncNotify, SQDraining, MaxRdAtomic           uint8
	MaxDestRdAtomic, MinRNRTimer, PortNum, Timeout      uint8
	RetryCnt, RNRRetry, AltPortNum, AltTimeout, padding uint8
	RateLimit                                           uint32
}

// SGE is struct ibv_sge.
type SGE struct {
	Addr         uint64
	Length, LKey uint32
}

// SendWR is struct ibv_send_wr. Remote and RKey are the rdma member of the first
// union, MW to BindAccess the bind_mw member of the last.
type SendWR struct {
	ID             uint64
	Next, SGList   uintptr
	NumSGE, Opcode int32
	Flags, Imm     uint32
	Remote         uint64
	RKey           uint32
	_              uint32
	_              [2]uint64 // the rest of the atomic member
	XRCSRQN        uint32
	_              uint32
	MW             uintptr
	BindRKey       uint32
	_              uint32
	BindMR         uintptr
	BindAddr       uint64
	BindLength     uint64
	BindAccess     uint32
	_              uint32
}

// RecvWR is struct ibv_recv_wr.
type RecvWR struct {
	ID           uint64
	Next, SGList uintptr
	NumSGE       int32
	_            uint32
}

// WC is struct ibv_wc.
type WC struct {
	ID                      uint64
	Status, Opcode          int32
	VendorErr, ByteLen, Imm uint32
	QPNum, SrcQP, Flags     uint32
	PkeyIndex, SLID         uint16
	SL, DLIDPathBits        uint8
	_                       [2]uint8
}

// SRQInitAttr is struct ibv_srq_init_attr.
type SRQInitAttr struct {
	Context                 uintptr
	MaxWR, MaxSGE, SRQLimit uint32
	_                       uint32
}

// AsyncEvent is struct ibv_async_event. Element is an object, or a port number in
// its low 32 bits.
type AsyncEvent struct {
	Element uint64
	Type    int32
	_       uint32
}

// GIDEntry is struct ibv_gid_entry.
type GIDEntry struct {
	GID                            [16]byte
	Index, Port, Type, NetdevIndex uint32
}

// The heads of structures that libibverbs makes, as far as we look into them.
type (
	contextHead struct {
		Device                            uintptr
		Ops                               contextOps
		CmdFD, AsyncFD, NumCompVectors, _ int32
	}
	// contextOps is struct ibv_context_ops: what the inline functions of the header
	// call.
	contextOps struct {
		_                           [7]uintptr
		AllocMW, bindMW1, DeallocMW uintptr
		_                           uintptr
		PollCQ, ReqNotifyCQ         uintptr
		_                           [12]uintptr
		PostSend, PostRecv          uintptr
		_                           [5]uintptr
	}
	channelHead struct {
		Context uintptr
		FD      int32
	}
	qpHead struct {
		Context, QPContext, PD, SendCQ, RecvCQ, SRQ uintptr
		Handle, QPNum                               uint32
	}
	mrHead struct {
		Context, PD, Addr, Length uintptr
		Handle, LKey, RKey        uint32
	}
	mwHead struct {
		Context, PD  uintptr
		RKey, Handle uint32
		Type         int32
	}
)

// qpEx is struct ibv_qp_ex from its comp_mask on; the size of the struct ibv_qp
// before it is that of qpBaseSize.
type qpEx struct {
	CompMask, WRID                                           uint64
	WRFlags                                                  uint32
	_                                                        uint32
	AtomicCmpSwp, AtomicFetchAdd, BindMW, LocalInv           uintptr
	RDMARead, RDMAWrite, RDMAWriteImm                        uintptr
	Send, SendImm, SendInv, SendTSO                          uintptr
	SetUDAddr, SetXRCSRQN, SetInline, SetInlineList          uintptr
	SetSGE, SetSGEList, Start, Complete, Abort, AtomicWrite_ uintptr
}

// qpBaseSize is sizeof(struct ibv_qp) with glibc's and musl's mutex and condition
// variable on a 64-bit machine, where long has 64 bits.
const qpBaseSize = 160

// Mlx5QPInitAttr is struct mlx5dv_qp_init_attr (infiniband/mlx5dv.h).
type Mlx5QPInitAttr struct {
	CompMask      uint64
	CreateFlags   uint32
	_             uint32
	DCType        int32
	_             uint32
	DCTAccessKey  uint64 // or the dci_streams
	SendOpsFlags_ uint64
}

// mlx5QPEx is the head of struct mlx5dv_qp_ex.
type mlx5QPEx struct {
	CompMask  uint64
	SetDCAddr uintptr
}
