package events_test

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/events"
)

func TestCheck_RefusesEventWithFlippedBit(t *testing.T) {
	t.Parallel()
	head := events.EmptyHead("agent-1")
	var all []*wasmstorev1.StoredEvent
	for _, e := range []*wasmagentv1.Event{
		{Epoch: 1, Kind: wasmagentv1.EventKind_EVENT_KIND_LIFECYCLE, Message: "created", Actor: "ana", State: wasmagentv1.AgentState_AGENT_STATE_IDLE, ModuleDigest: "aa", MeterVersion: 2},
		{Epoch: 1, Kind: wasmagentv1.EventKind_EVENT_KIND_EMITTED, Effect: wasmagentv1.EffectKind_EFFECT_KIND_TOOL, Fuel: 300},
		{Epoch: 1, Kind: wasmagentv1.EventKind_EVENT_KIND_RESULT, EffectSequence: 2, DecisionId: "d", Code: commonv1.Code_CODE_DENIED_BY_RULE, ApprovalId: "a"},
		{Epoch: 2, Kind: wasmagentv1.EventKind_EVENT_KIND_LIFECYCLE, FromEpoch: 1, FromSequence: 2},
	} {
		var envelope []byte
		if e.GetEffect() != 0 {
			envelope = []byte(`{"kind":"tool"}`)
		}
		var stored *wasmstorev1.StoredEvent
		stored, head = events.Append(head, e, envelope)
		all = append(all, stored)
	}
	at := events.EmptyHead("agent-1")
	for i, e := range all {
		text, err := proto.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		for bit := range len(text) * 8 {
			changed := append([]byte(nil), text...)
			changed[bit/8] ^= 1 << (bit % 8)
			got := new(wasmstorev1.StoredEvent)
			if proto.Unmarshal(changed, got) != nil || proto.Equal(got, e) { // a number may have several encodings
				continue
			}
			if _, err := events.Check(at, got); !errors.Is(err, events.ErrChain) {
				t.Errorf("event %d with bit %d flipped is accepted: %v", i, bit, err)
			}
		}
		if i > 0 {
			if _, err := events.Check(events.EmptyHead("agent-1"), e); !errors.Is(err, events.ErrChain) {
				t.Errorf("event %d is accepted as the first event: %v", i, err)
			}
		}
		if at, err = events.Check(at, e); err != nil {
			t.Fatal(err)
		}
	}
	if !proto.Equal(at, head) {
		t.Errorf("after reading, the head is %v; after writing, it was %v", at, head)
	}
	if _, err := events.Check(events.EmptyHead("agent-2"), all[0]); !errors.Is(err, events.ErrChain) {
		t.Errorf("the first event is accepted in the journal of another agent: %v", err)
	}
}
