package intake

import (
	"context"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/internal/scrub"
)

// Message reads a server's message without the server's secrets. A large one is read in
// turns, for others wait for the processor meanwhile. Errors are those of the gate, of
// ctx, or that too much of the holder's waits for turns.
func Message(ctx context.Context, raw []byte, clean *scrub.Scrubber, has *room.Holding) (*gate.Answer, error) {
	end, err := has.TurnFor(ctx, len(raw))
	if err != nil {
		return nil, err
	}
	defer end()
	return gate.ReadAnswer(clean.Answer(raw), gate.AnswerLimits())
}

// Mended reads a message as [Message] does. If it is an answer with a fault that [gate.Mend] repairs, it is repaired in
// raw itself; methodOf is as there.
func Mended(ctx context.Context, raw []byte, clean *scrub.Scrubber, has *room.Holding, methodOf func(id []byte) string) (*gate.Answer, error) {
	end, err := has.TurnFor(ctx, len(raw))
	if err != nil {
		return nil, err
	}
	defer end()
	raw = clean.Answer(raw)
	answer, err := gate.ReadAnswer(raw, gate.AnswerLimits())
	if err == nil || !gate.Mend(raw, gate.AnswerLimits(), methodOf) {
		return answer, err
	}
	return gate.ReadAnswer(raw, gate.AnswerLimits())
}
