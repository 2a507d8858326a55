package bodyreader

import (
	"context"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/internal/redact"
)

// ReadMessage reads a server's message with the server's secrets redacted. For a large message it first waits for a
// processor slot. Errors are those of the gate and of ctx, or that too many of the holder's messages wait for slots.
func ReadMessage(ctx context.Context, raw []byte, clean *redact.Redactor, has *limits.Memory) (*jsonrpc.Answer, error) {
	end, err := has.TimesliceFor(ctx, len(raw))
	if err != nil {
		return nil, err
	}
	defer end()
	return jsonrpc.ReadAnswer(clean.Answer(raw), jsonrpc.AnswerLimits())
}

// ReadRepaired is [ReadMessage], but repairs an answer with a fault that [jsonrpc.Repair] knows, in raw itself. methodOf is that
// of gate.Mend.
func ReadRepaired(ctx context.Context, raw []byte, clean *redact.Redactor, has *limits.Memory, methodOf func(id []byte) string) (*jsonrpc.Answer, error) {
	end, err := has.TimesliceFor(ctx, len(raw))
	if err != nil {
		return nil, err
	}
	defer end()
	raw = clean.Answer(raw)
	answer, err := jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
	if err == nil || !jsonrpc.Repair(raw, jsonrpc.AnswerLimits(), methodOf) {
		return answer, err
	}
	return jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
}
