// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package ibv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"
)

// fact is a number that Go and C must agree on.
type fact struct {
	expr string // C
	want uintptr
}

func size[T any](c string) fact {
	var v T
	return fact{"sizeof(" + c + ")", unsafe.Sizeof(v)}
}

func facts() []fact {
	f := []fact{
		size[DeviceAttr]("struct ibv_device_attr"),
		size[PortAttr]("struct ibv_port_attr"),
		size[QPCap]("struct ibv_qp_cap"),
		size[QPInitAttr]("struct ibv_qp_init_attr"),
		size[QPInitAttrEx]("struct ibv_qp_init_attr_ex"),
		size[GlobalRoute]("struct ibv_global_route"),
		size[AHAttr]("struct ibv_ah_attr"),
		size[QPAttr]("struct ibv_qp_attr"),
		size[SGE]("struct ibv_sge"),
		size[SendWR]("struct ibv_send_wr"),
		size[RecvWR]("struct ibv_recv_wr"),
		size[WC]("struct ibv_wc"),
		size[SRQInitAttr]("struct ibv_srq_init_attr"),
		size[AsyncEvent]("struct ibv_async_event"),
		size[GIDEntry]("struct ibv_gid_entry"),
		size[contextOps]("struct ibv_context_ops"),
		size[Mlx5QPInitAttr]("struct mlx5dv_qp_init_attr"),
		{"sizeof(struct ibv_qp)", qpBaseSize},
	}
	at := func(c string, want uintptr) {
		t, m, _ := strings.Cut(c, ".")
		f = append(f, fact{fmt.Sprintf("offsetof(struct %s, %s)", t, m), want})
	}
	var d DeviceAttr
	at("ibv_device_attr.max_mr_size", unsafe.Offsetof(d.MaxMRSize))
	at("ibv_device_attr.max_qp", unsafe.Offsetof(d.MaxQP))
	at("ibv_device_attr.device_cap_flags", unsafe.Offsetof(d.CapFlags))
	at("ibv_device_attr.max_cqe", unsafe.Offsetof(d.MaxCQE))
	at("ibv_device_attr.max_qp_rd_atom", unsafe.Offsetof(d.MaxQPRdAtom))
	at("ibv_device_attr.max_qp_init_rd_atom", unsafe.Offsetof(d.MaxQPInitRdAtom))
	at("ibv_device_attr.max_mw", unsafe.Offsetof(d.MaxMW))
	at("ibv_device_attr.phys_port_cnt", unsafe.Offsetof(d.PhysPortCnt))
	var p PortAttr
	at("ibv_port_attr.active_mtu", unsafe.Offsetof(p.ActiveMTU))
	at("ibv_port_attr.max_msg_sz", unsafe.Offsetof(p.MaxMsgSz))
	at("ibv_port_attr.lid", unsafe.Offsetof(p.LID))
	at("ibv_port_attr.active_speed", unsafe.Offsetof(p.ActiveSpeed))
	at("ibv_port_attr.link_layer", unsafe.Offsetof(p.LinkLayer))
	var i QPInitAttr
	at("ibv_qp_init_attr.cap", unsafe.Offsetof(i.Cap))
	at("ibv_qp_init_attr.qp_type", unsafe.Offsetof(i.Type))
	var x QPInitAttrEx
	at("ibv_qp_init_attr_ex.comp_mask", unsafe.Offsetof(x.CompMask))
	at("ibv_qp_init_attr_ex.pd", unsafe.Offsetof(x.PD))
	at("ibv_qp_init_attr_ex.source_qpn", unsafe.Offsetof(x.SourceQPN))
	at("ibv_qp_init_attr_ex.send_ops_flags", unsafe.Offsetof(x.SendOpsFlags))
	var a QPAttr
	at("ibv_qp_attr.path_mtu", unsafe.Offsetof(a.PathMTU))
	at("ibv_qp_attr.dest_qp_num", unsafe.Offsetof(a.DestQPNum))
	at("ibv_qp_attr.ah_attr", unsafe.Offsetof(a.AH))
	at("ibv_qp_attr.pkey_index", unsafe.Offsetof(a.PkeyIndex))
	at("ibv_qp_attr.max_rd_atomic", unsafe.Offsetof(a.MaxRdAtomic))
	at("ibv_qp_attr.max_dest_rd_atomic", unsafe.Offsetof(a.MaxDestRdAtomic))
	at("ibv_qp_attr.min_rnr_timer", unsafe.Offsetof(a.MinRNRTimer))
	at("ibv_qp_attr.port_num", unsafe.Offsetof(a.PortNum))
	at("ibv_qp_attr.timeout", unsafe.Offsetof(a.Timeout))
	at("ibv_qp_attr.rnr_retry", unsafe.Offsetof(a.RNRRetry))
	at("ibv_ah_attr.dlid", unsafe.Offsetof(a.AH.DLID))
	at("ibv_ah_attr.is_global", unsafe.Offsetof(a.AH.IsGlobal))
	at("ibv_ah_attr.port_num", unsafe.Offsetof(a.AH.PortNum_))
	at("ibv_global_route.sgid_index", unsafe.Offsetof(a.AH.GRH.SGIDIndex))
	at("ibv_global_route.traffic_class", unsafe.Offsetof(a.AH.GRH.TrafficClass_))
	var w SendWR
	at("ibv_send_wr.next", unsafe.Offsetof(w.Next))
	at("ibv_send_wr.sg_list", unsafe.Offsetof(w.SGList))
	at("ibv_send_wr.opcode", unsafe.Offsetof(w.Opcode))
	at("ibv_send_wr.send_flags", unsafe.Offsetof(w.Flags))
	at("ibv_send_wr.invalidate_rkey", unsafe.Offsetof(w.Imm))
	at("ibv_send_wr.wr.rdma.remote_addr", unsafe.Offsetof(w.Remote))
	at("ibv_send_wr.wr.rdma.rkey", unsafe.Offsetof(w.RKey))
	at("ibv_send_wr.bind_mw.mw", unsafe.Offsetof(w.MW))
	at("ibv_send_wr.bind_mw.rkey", unsafe.Offsetof(w.BindRKey))
	at("ibv_send_wr.bind_mw.bind_info.mr", unsafe.Offsetof(w.BindMR))
	at("ibv_send_wr.bind_mw.bind_info.mw_access_flags", unsafe.Offsetof(w.BindAccess))
	var c WC
	at("ibv_wc.status", unsafe.Offsetof(c.Status))
	at("ibv_wc.opcode", unsafe.Offsetof(c.Opcode))
	at("ibv_wc.byte_len", unsafe.Offsetof(c.ByteLen))
	at("ibv_wc.qp_num", unsafe.Offsetof(c.QPNum))
	at("ibv_wc.wc_flags", unsafe.Offsetof(c.Flags))
	var h contextHead
	at("ibv_context.ops", unsafe.Offsetof(h.Ops))
	at("ibv_context.async_fd", unsafe.Offsetof(h.AsyncFD))
	at("ibv_context_ops.alloc_mw", unsafe.Offsetof(h.Ops.AllocMW))
	at("ibv_context_ops.dealloc_mw", unsafe.Offsetof(h.Ops.DeallocMW))
	at("ibv_context_ops.poll_cq", unsafe.Offsetof(h.Ops.PollCQ))
	at("ibv_context_ops.req_notify_cq", unsafe.Offsetof(h.Ops.ReqNotifyCQ))
	at("ibv_context_ops.post_send", unsafe.Offsetof(h.Ops.PostSend))
	at("ibv_context_ops.post_recv", unsafe.Offsetof(h.Ops.PostRecv))
	var ch channelHead
	at("ibv_comp_channel.fd", unsafe.Offsetof(ch.FD))
	var q qpHead
	at("ibv_qp.qp_num", unsafe.Offsetof(q.QPNum))
	var m mrHead
	at("ibv_mr.lkey", unsafe.Offsetof(m.LKey))
	at("ibv_mr.rkey", unsafe.Offsetof(m.RKey))
	var mw mwHead
	at("ibv_mw.rkey", unsafe.Offsetof(mw.RKey))
	var e AsyncEvent
	at("ibv_async_event.event_type", unsafe.Offsetof(e.Type))
	var g GIDEntry
	at("ibv_gid_entry.gid_index", unsafe.Offsetof(g.Index))
	at("ibv_gid_entry.port_num", unsafe.Offsetof(g.Port))
	at("ibv_gid_entry.gid_type", unsafe.Offsetof(g.Type))
	at("ibv_gid_entry.ndev_ifindex", unsafe.Offsetof(g.NetdevIndex))
	var s SRQInitAttr
	at("ibv_srq_init_attr.attr.max_wr", unsafe.Offsetof(s.MaxWR))
	var qx qpEx
	at("ibv_qp_ex.wr_id", qpBaseSize+unsafe.Offsetof(qx.WRID))
	at("ibv_qp_ex.wr_flags", qpBaseSize+unsafe.Offsetof(qx.WRFlags))
	at("ibv_qp_ex.wr_rdma_read", qpBaseSize+unsafe.Offsetof(qx.RDMARead))
	at("ibv_qp_ex.wr_rdma_write", qpBaseSize+unsafe.Offsetof(qx.RDMAWrite))
	at("ibv_qp_ex.wr_set_sge", qpBaseSize+unsafe.Offsetof(qx.SetSGE))
	at("ibv_qp_ex.wr_start", qpBaseSize+unsafe.Offsetof(qx.Start))
	at("ibv_qp_ex.wr_complete", qpBaseSize+unsafe.Offsetof(qx.Complete))
	at("ibv_qp_ex.wr_atomic_write", qpBaseSize+unsafe.Offsetof(qx.AtomicWrite_))
	var mi Mlx5QPInitAttr
	at("mlx5dv_qp_init_attr.dc_init_attr", unsafe.Offsetof(mi.DCType))
	at("mlx5dv_qp_init_attr.dc_init_attr.dct_access_key", unsafe.Offsetof(mi.DCTAccessKey))
	var mq mlx5QPEx
	at("mlx5dv_qp_ex.wr_set_dc_addr", unsafe.Offsetof(mq.SetDCAddr))

	for c, v := range map[string]int{
		"IBV_QPT_RC": QPTypeRC, "IBV_QPT_DRIVER": QPTypeDriver,
		"IBV_QPS_RESET": QPStateReset, "IBV_QPS_INIT": QPStateInit, "IBV_QPS_RTR": QPStateRTR, "IBV_QPS_RTS": QPStateRTS, "IBV_QPS_ERR": QPStateErr,
		"IBV_ACCESS_LOCAL_WRITE": AccessLocalWrite, "IBV_ACCESS_REMOTE_WRITE": AccessRemoteWrite, "IBV_ACCESS_REMOTE_READ": AccessRemoteRead, "IBV_ACCESS_MW_BIND": AccessMWBind,
		"IBV_WR_RDMA_WRITE": WRWrite, "IBV_WR_SEND": WRSend, "IBV_WR_SEND_WITH_IMM": WRSendImm, "IBV_WR_RDMA_READ": WRRead, "IBV_WR_LOCAL_INV": WRLocalInv, "IBV_WR_BIND_MW": WRBindMW,
		"IBV_SEND_FENCE": SendFence, "IBV_SEND_SIGNALED": SendSignaled, "IBV_SEND_SOLICITED": SendSolicited, "IBV_SEND_INLINE": SendInline,
		"IBV_WC_RECV": WCRecv, "IBV_MW_TYPE_2": MWType2,
		"IBV_DEVICE_MEM_WINDOW": CapMemWindow, "IBV_DEVICE_MEM_WINDOW_TYPE_2A": CapMWType2A, "IBV_DEVICE_MEM_WINDOW_TYPE_2B": CapMWType2B,
		"IBV_LINK_LAYER_INFINIBAND": LinkLayerIB, "IBV_LINK_LAYER_ETHERNET": LinkLayerEthernet, "IBV_PORT_ACTIVE": PortStateActive,
		"IBV_EVENT_QP_FATAL": EventQPFatal, "IBV_EVENT_DEVICE_FATAL": EventDeviceFatal, "IBV_EVENT_PORT_ACTIVE": EventPortActive, "IBV_EVENT_PORT_ERR": EventPortErr,
		"IBV_EVENT_LID_CHANGE": EventLIDChange, "IBV_EVENT_GID_CHANGE": EventGIDChange,
		"IBV_QP_STATE": AttrState, "IBV_QP_ACCESS_FLAGS": AttrAccess, "IBV_QP_PKEY_INDEX": AttrPkeyIndex, "IBV_QP_PORT": AttrPort, "IBV_QP_AV": AttrAV,
		"IBV_QP_PATH_MTU": AttrPathMTU, "IBV_QP_TIMEOUT": AttrTimeout, "IBV_QP_RETRY_CNT": AttrRetryCnt, "IBV_QP_RNR_RETRY": AttrRNRRetry, "IBV_QP_RQ_PSN": AttrRQPSN,
		"IBV_QP_MAX_QP_RD_ATOMIC": AttrMaxRdAtomic, "IBV_QP_MIN_RNR_TIMER": AttrMinRNRTimer, "IBV_QP_SQ_PSN": AttrSQPSN, "IBV_QP_MAX_DEST_RD_ATOMIC": AttrMaxDestRd, "IBV_QP_DEST_QPN": AttrDestQPN,
		"IBV_WC_SUCCESS": WCSuccess, "IBV_WC_WR_FLUSH_ERR": WCFlush, "IBV_WC_MW_BIND_ERR": WCMWBind, "IBV_WC_BAD_RESP_ERR": WCBadResp, "IBV_WC_REM_INV_REQ_ERR": WCRemInvReq,
		"IBV_WC_REM_ACCESS_ERR": WCRemAccess, "IBV_WC_REM_OP_ERR": WCRemOp, "IBV_WC_RETRY_EXC_ERR": WCRetryExc, "IBV_WC_RNR_RETRY_EXC_ERR": WCRNRRetryExc,
		"IBV_WC_GENERAL_ERR":  len(statusNames) - 1,
		"IBV_QP_INIT_ATTR_PD": qpInitExPD, "IBV_QP_INIT_ATTR_SEND_OPS_FLAGS": qpInitExSendOps,
		"IBV_QP_EX_WITH_RDMA_WRITE": qpExRDMAWrite, "IBV_QP_EX_WITH_RDMA_READ": qpExRDMARead,
		"MLX5DV_QP_INIT_ATTR_MASK_DC": mlx5InitDC, "MLX5DV_DCTYPE_DCT": mlx5DCTypeDCT, "MLX5DV_DCTYPE_DCI": mlx5DCTypeDCI,
		"IBV_MTU_256": 1, "IBV_GID_TYPE_IB": GIDTypeIB, "IBV_GID_TYPE_ROCE_V1": GIDTypeRoCEv1, "IBV_GID_TYPE_ROCE_V2": GIDTypeRoCEv2, "IBV_MTU_4096": 5, "ETIMEDOUT": 110,
	} {
		f = append(f, fact{c, uintptr(v)})
	}
	return f
}

// TestLayout has the C compiler say what the header says.
func TestLayout(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "facts.c"), filepath.Join(dir, "facts")
	var b strings.Builder
	b.WriteString("#include <errno.h>\n#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\nint main(void) {\n")
	all := facts()
	for _, f := range all {
		fmt.Fprintf(&b, "\tprintf(\"%%lu\\n\", (unsigned long)(%s));\n", f.expr)
	}
	b.WriteString("\treturn 0;\n}\n")
	if err := os.WriteFile(src, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-w", "-o", bin, src).CombinedOutput(); err != nil {
		if strings.Contains(string(out), "No such file or directory") {
			t.Skip("no headers of rdma-core (Debian: libibverbs-dev)")
		}
		t.Fatalf("compile: %v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(out))
	if len(lines) != len(all) {
		t.Fatalf("%d answers to %d questions", len(lines), len(all))
	}
	for i, f := range all {
		if got := fmt.Sprint(f.want); got != lines[i] {
			t.Errorf("%s is %s in the header, %s here", f.expr, lines[i], got)
		}
	}
}
