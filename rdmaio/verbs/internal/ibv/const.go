// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package ibv

import "fmt"

// Constants of infiniband/verbs.h, under its names without IBV_.
const (
	QPTypeRC     = 2
	QPTypeDriver = 0xff

	QPStateReset = 0
	QPStateInit  = 1
	QPStateRTR   = 2
	QPStateRTS   = 3
	QPStateErr   = 6

	AccessLocalWrite  = 1 << 0
	AccessRemoteWrite = 1 << 1
	AccessRemoteRead  = 1 << 2
	AccessMWBind      = 1 << 4

	WRWrite    = 0
	WRWriteImm = 1
	WRSend     = 2
	WRSendImm  = 3
	WRRead     = 4
	WRLocalInv = 7
	WRBindMW   = 8

	SendFence     = 1 << 0
	SendSignaled  = 1 << 1
	SendSolicited = 1 << 2
	SendInline    = 1 << 3

	WCRecv            = 1 << 7 // bit of an opcode
	WCRecvRDMAWithImm = WCRecv + 1
	WCWithImm         = 1 << 1 // bit of the flags

	MWType2 = 2

	CapMemWindow       = 1 << 17
	CapMWType2A        = 1 << 23
	CapMWType2B        = 1 << 24
	LinkLayerIB        = 1
	LinkLayerEthernet  = 2
	PortStateActive    = 4
	EventQPFatal       = 1
	EventDeviceFatal   = 8
	EventPortActive    = 9
	EventPortErr       = 10
	EventLIDChange     = 11
	EventGIDChange     = 18
	qpInitExPD         = 1 << 0
	qpInitExSendOps    = 1 << 6
	qpExRDMAWrite      = 1 << 0
	qpExRDMARead       = 1 << 4
	mlx5InitDC         = 1 << 1
	mlx5DCTypeDCT      = 1
	mlx5DCTypeDCI      = 2
	GIDTypeIB          = 0
	GIDTypeRoCEv1      = 1
	GIDTypeRoCEv2      = 2
	mtuSmallestCode    = 1
	mtuSmallestInBytes = 256
)

// Attribute bits of ibv_modify_qp.
const (
	AttrState       = 1 << 0
	AttrAccess      = 1 << 3
	AttrPkeyIndex   = 1 << 4
	AttrPort        = 1 << 5
	AttrAV          = 1 << 7
	AttrPathMTU     = 1 << 8
	AttrTimeout     = 1 << 9
	AttrRetryCnt    = 1 << 10
	AttrRNRRetry    = 1 << 11
	AttrRQPSN       = 1 << 12
	AttrMaxRdAtomic = 1 << 13
	AttrMinRNRTimer = 1 << 15
	AttrSQPSN       = 1 << 16
	AttrMaxDestRd   = 1 << 17
	AttrDestQPN     = 1 << 20
)

// Completion statuses.
const (
	WCSuccess     = 0
	WCFlush       = 5
	WCMWBind      = 6
	WCBadResp     = 7
	WCRemInvReq   = 9
	WCRemAccess   = 10
	WCRemOp       = 11
	WCRetryExc    = 12
	WCRNRRetryExc = 13
)

var statusNames = [...]string{
	"success", "local length error", "local queue pair operation error", "local EE context operation error",
	"local protection error", "flushed", "memory window bind error", "bad response", "local access error",
	"remote invalid request", "remote access error", "remote operation error", "retries exceeded",
	"receiver-not-ready retries exceeded", "local RDD violation", "remote invalid RD request", "remote aborted",
	"invalid EE context number", "invalid EE context state", "fatal error", "response timeout", "general error",
}

// StatusName says what a completion status means.
func StatusName(status int32) string {
	if status >= 0 && int(status) < len(statusNames) {
		return statusNames[status]
	}
	return fmt.Sprintf("status %d", status)
}

// MTUBytes translates the code of a path MTU (1 to 5) to bytes (256 to 4096).
func MTUBytes(code int32) int { return mtuSmallestInBytes << (max(code, mtuSmallestCode) - 1) }
