// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// SessionPrefix begins the path of the endpoints where peers connect before they
// send descriptors: POST /.s3rdma-NAME/connect and /disconnect, NAME being the
// fabric's (shm, tcp, rc). No S3 bucket can have such a name.
const SessionPrefix = "/.s3rdma-"

// IsSessionPath tells whether path is below [SessionPrefix] or [HipObjPrefix]: such a
// request is the plugin's, and no S3 call.
func IsSessionPath(path string) bool {
	return strings.HasPrefix(path, SessionPrefix) || strings.HasPrefix(path, HipObjPrefix)
}

// serveSession answers a connect or a disconnect. Like every use of a descriptor
// they must be signed, the token or session header included: the signature ties
// the session to an identity.
//
// With Config.ConnectUnsigned the queue pairs' sessions may do without, because
// clients exist that cannot sign these requests. What an unsigned connect gains is a
// connection that nobody may use: its peer is held to the allow-list, and the session
// becomes that of the first identity whose signed object request names it. Whoever
// reads the answer on its way could be that first one: over a network that others
// listen to it takes TLS. The session's id stands in for a signature where such a
// session is disconnected.
func (p *Plugin) serveSession(s Server, w http.ResponseWriter, r *http.Request) {
	name, action, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, SessionPrefix), "/")
	info := SessionInfo{Disconnect: action == "disconnect"}
	var e *Error
	switch {
	case action != "connect" && action != "disconnect":
		e = &Error{http.StatusNotFound, "NoSuchKey", "Below " + SessionPrefix + "NAME/ there are only connect and disconnect.", reasonOperation, false}
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		e = &Error{http.StatusMethodNotAllowed, "MethodNotAllowed", "Connect and disconnect by POST.", reasonOperation, false}
	default:
		e = p.session(s, w, r, name, &info)
	}
	if e != nil {
		if e.reply {
			p.dialects[0].Decline(w.Header(), e.Status)
		}
		info.Err = e
		s.WriteError(w, r, e)
	}
	p.cfg.Listener.sessionDone(info)
}

func (p *Plugin) session(s Server, w http.ResponseWriter, r *http.Request, name string, info *SessionInfo) *Error {
	f := p.fabrics[name]
	a, ok := f.(rdmaio.Acceptor)
	if !ok {
		return declined(reasonTransport, "This server has no such fabric to connect to. It has: %s.", p.acceptors())
	}
	info.Transport = name
	header := HeaderToken
	if info.Disconnect {
		header = HeaderSession
	}
	var id Identity
	if !(p.cfg.ConnectUnsigned && name == rdmaio.TransportRC.String() && !claimsSignature(r)) {
		if !signedHeader(r, header) {
			return accessDenied(reasonUnsigned, "The header %s must be present and among the signed headers (Signature Version 4).", header)
		}
		var e *Error
		if id, e = p.authenticate(s, r); e != nil {
			return e
		}
	}
	info.Owner = id.Name
	if hasBody(r) {
		return invalidRequest(reasonBody, "Connect and disconnect have no body.")
	}
	if !p.begin() {
		return declined(reasonOff, "The server is shutting down.")
	}
	defer p.flight.Done()
	if info.Disconnect {
		return p.disconnect(a, w, r, id)
	}
	return p.connect(a, w, r, id)
}

// claimsSignature tells whether r says that it is signed, in whatever way. Then it is
// held to that.
func claimsSignature(r *http.Request) bool {
	if len(r.Header.Values("Authorization")) > 0 {
		return true
	}
	for name := range r.URL.Query() {
		switch strings.ToLower(name) {
		case "x-amz-signature", "x-amz-signedheaders", "x-amz-credential", "signature", "awsaccesskeyid":
			return true
		}
	}
	return false
}

func (p *Plugin) connect(a rdmaio.Acceptor, w http.ResponseWriter, r *http.Request, id Identity) *Error {
	peer, e := p.callingPeer(r)
	if e != nil {
		return e
	}
	tokens := r.Header.Values(HeaderToken)
	if len(tokens) != 1 {
		return malformedToken(reasonMalformed, "%d headers %s, want one.", len(tokens), HeaderToken)
	}
	hello := rdmaio.Hello{Token: tokens[0], Owner: id.Name, Peer: peer, Local: localAddr(r)}
	if s := r.Header.Get(HeaderPSN); s != "" {
		psn, err := strconv.ParseUint(s, 16, 24)
		if err != nil || len(s) != 6 || psn == 0 {
			return malformedToken(reasonMalformed, "%s is not six hex digits of a number above 0.", HeaderPSN)
		}
		hello.PSN = uint32(psn)
	}
	welcome, err := a.Accept(r.Context(), hello)
	switch {
	case err == nil:
	case errors.Is(err, rdmaio.ErrMalformed):
		return malformedToken(reasonMalformed, "The hello cannot be read: %v.", err)
	case errors.Is(err, rdmaio.ErrUnsupported), errors.Is(err, rdmaio.ErrClosed):
		return declined(reasonTransport, "The fabric cannot serve this peer: %v.", err)
	case errors.Is(err, rdmaio.ErrRefused):
		return accessDenied(reasonPeer, "The fabric refuses this peer: %v.", err)
	case errors.Is(err, rdmaio.ErrTooMany):
		return slowDown(reasonSessions, "No more sessions: %v. Disconnect those that are not needed.", err)
	default:
		return transferFailed("The session could not be made: %v.", err)
	}
	sendWelcome(w, welcome)
	return nil
}

// callingPeer returns the host that r comes from, which may make sessions.
func (p *Plugin) callingPeer(r *http.Request) (netip.Addr, *Error) {
	peer, known := remoteAddr(r)
	if len(p.cfg.AllowPeers) > 0 && !(known && p.peerAllowed(peer, r)) {
		return peer, accessDenied(reasonPeer, "This host is not on this server's allow-list.")
	}
	return peer, nil
}

// sendWelcome answers with success, and what a fabric says to a peer.
func sendWelcome(w http.ResponseWriter, welcome rdmaio.Welcome) {
	h := w.Header()
	h.Set(HeaderSession, welcome.Session.Hex())
	h.Set(HeaderReply, "200:"+welcome.Token)
	if welcome.PSN != 0 {
		h.Set(HeaderPSN, fmt.Sprintf("%06x", welcome.PSN))
	}
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
}

func (p *Plugin) disconnect(a rdmaio.Acceptor, w http.ResponseWriter, r *http.Request, id Identity) *Error {
	session, err := rdmaio.ParseSessionID(r.Header.Get(HeaderSession))
	if err != nil {
		return malformedToken(reasonMalformed, "The header %s cannot be read: %v.", HeaderSession, err)
	}
	err = a.Hangup(r.Context(), session, id.Name)
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
		return nil
	case errors.Is(err, rdmaio.ErrNoSession):
		return &Error{http.StatusNotFound, CodeNoSession, "The session does not exist (any more).", reasonSession, false}
	case errors.Is(err, rdmaio.ErrNotOwner):
		return accessDenied(reasonOwner, "The session belongs to another identity.")
	}
	return transferFailed("The session could not be ended: %v.", err)
}

// acceptors lists the fabrics that take connects.
func (p *Plugin) acceptors() string {
	var names []string
	for _, f := range p.cfg.Fabrics {
		if _, ok := f.(rdmaio.Acceptor); ok {
			names = append(names, f.Capabilities().Name)
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ", ")
}
