package bodyreader

import (
	"context"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/internal/redact"
)

// ReadMessage reads a server's message with the server's secrets redacted. For a large message it first waits for a
// processor slot. Errors are those of [jsonrpc.ReadAnswer] and of [limits.Memory.TimesliceFor].
func ReadMessage(ctx context.Context, raw []byte, redactor *redact.Redactor, memory *limits.Memory) (*jsonrpc.Answer, error) {
	end, err := memory.TimesliceFor(ctx, len(raw))
	if err != nil {
		return nil, err
	}
	defer end()
	return jsonrpc.ReadAnswer(redactor.Answer(raw), jsonrpc.AnswerLimits())
}

// ReadRepaired is [ReadMessage], but repairs an answer with a fault that [jsonrpc.Repair] knows, in raw itself.
// methodOf is that of gate.Mend.
func ReadRepaired(ctx context.Context, raw []byte, redactor *redact.Redactor, memory *limits.Memory, methodOf func(id []byte) string) (*jsonrpc.Answer, error) {
	end, err := memory.TimesliceFor(ctx, len(raw))
	if err != nil {
		return nil, err
	}
	defer end()
	raw = redactor.Answer(raw)
	answer, err := jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
	if err == nil || !jsonrpc.Repair(raw, jsonrpc.AnswerLimits(), methodOf) {
		return answer, err
	}
	return jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
}
