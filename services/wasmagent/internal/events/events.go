// Package events links the events of an agent's journal into a hash chain. Each event contains the hash of the previous
// event, so that [Check] detects an event that was changed, moved or removed. Package agent uses the package.
package events

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
)

// hashVersion is the first part of the input of every event's hash. It identifies the version of the format.
const hashVersion = "sluice-agent-event-1"

// maxListedEnvelope limits the size, in bytes, of an envelope in a list of events. The list omits larger envelopes, and
// contains only their digests.
const maxListedEnvelope = 16 << 10

// ErrChain means that an event does not follow the previous event, or that an event was changed. Compare it with
// errors.Is.
var ErrChain = errors.New("the journal's chain is broken")

// EmptyHead returns the head of an empty journal, which is the position before the first event.
func EmptyHead(journalID string) *wasmstorev1.Head {
	return &wasmstorev1.Head{Hash: digest([]byte(journalID))}
}

// Append appends an event and its envelope, which may be nil, to a journal that ends at the given head. It returns the
// event to store and the new head.
func Append(head *wasmstorev1.Head, e *wasmagentv1.Event, envelope []byte) (*wasmstorev1.StoredEvent, *wasmstorev1.Head) {
	e.Sequence = head.GetSequence() + 1
	if e.GetEpoch() != head.GetEpoch() {
		e.Sequence = 1
	}
	if e.Time == nil {
		e.Time = timestamppb.Now()
	}
	if envelope != nil {
		e.EnvelopeDigest = digest(envelope)
	}
	e.PreviousHash = head.GetHash()
	e.Hash = hash(e)
	out := &wasmstorev1.StoredEvent{Event: e, Envelope: envelope}
	return out, headAfter(head, out)
}

func headAfter(head *wasmstorev1.Head, e *wasmstorev1.StoredEvent) *wasmstorev1.Head {
	return &wasmstorev1.Head{
		Place: head.GetPlace() + 1, Epoch: e.GetEvent().GetEpoch(), Sequence: e.GetEvent().GetSequence(), Hash: e.GetEvent().GetHash(),
		Bytes: head.GetBytes() + int64(proto.Size(e)),
	}
}

// Check checks that an event follows the given head, and returns the head after the event. If the check fails, it
// returns an error that wraps [ErrChain] and contains the reason.
func Check(head *wasmstorev1.Head, e *wasmstorev1.StoredEvent) (*wasmstorev1.Head, error) {
	event := e.GetEvent()
	sequence := head.GetSequence() + 1
	if event.GetEpoch() != head.GetEpoch() {
		sequence = 1
	}
	envelope := ""
	if e.Envelope != nil {
		envelope = digest(e.Envelope)
	}
	switch {
	case event.GetPreviousHash() != head.GetHash():
		return nil, fmt.Errorf("%w: it does not follow the event before", ErrChain)
	case event.GetSequence() != sequence, event.GetEpoch() < head.GetEpoch():
		return nil, fmt.Errorf("%w: its epoch or its sequence does not follow the event before", ErrChain)
	case event.GetEnvelopeDigest() != envelope:
		return nil, fmt.Errorf("%w: its envelope was changed", ErrChain)
	case event.GetHash() != hash(event), event.GetEnvelopeJson() != "", hasUnknownFields(e):
		return nil, fmt.Errorf("%w: it was changed", ErrChain)
	}
	return headAfter(head, e), nil
}

// hasUnknownFields reports whether a message has unknown fields. Such a message is refused, because the hash does not
// cover unknown fields.
func hasUnknownFields(e *wasmstorev1.StoredEvent) bool {
	return len(e.ProtoReflect().GetUnknown())+len(e.GetEvent().ProtoReflect().GetUnknown())+len(e.GetEvent().GetTime().ProtoReflect().GetUnknown()) > 0
}

// Proto converts a stored event to a protobuf message for responses.
func Proto(e *wasmstorev1.StoredEvent) *wasmagentv1.Event {
	out := proto.CloneOf(e.GetEvent())
	if len(e.GetEnvelope()) <= maxListedEnvelope && utf8.Valid(e.GetEnvelope()) {
		out.EnvelopeJson = string(e.GetEnvelope())
	}
	return out
}

// hash returns the hash of an event, as sluice/wasmagent/v1/journal.proto defines it (Event.hash).
func hash(e *wasmagentv1.Event) string {
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	sum := canonicaljson.Sum(
		hashVersion, n(int64(e.GetEpoch())), n(e.GetSequence()), n(int64(e.GetKind())), nanosText(e.GetTime()), n(int64(e.GetEffect())),
		e.GetEnvelopeDigest(), n(e.GetEffectSequence()), e.GetDecisionId(), n(int64(e.GetCode())), e.GetApprovalId(), n(e.GetFuel()),
		n(int64(e.GetState())), e.GetMessage(), e.GetActor(), n(int64(e.GetFromEpoch())), n(e.GetFromSequence()), e.GetModuleDigest(),
		n(int64(e.GetMeterVersion())), e.GetPreviousHash(),
	)
	return hex.EncodeToString(sum[:])
}

// nanosText returns the number of nanoseconds from 1970 to t as decimal digits. The number may need more than 64 bits.
// If t is nil, nanosText returns "0".
func nanosText(t *timestamppb.Timestamp) string {
	if t == nil {
		return "0"
	}
	return fmt.Sprintf("%d%09d", t.GetSeconds(), t.GetNanos())
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
