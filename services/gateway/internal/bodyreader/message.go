package bodyreader

import (
	"context"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/internal/redact"
)

// ReadMessage redacts the server's secrets in a message and then parses the message. If the message is large,
// ReadMessage first waits until it may use the processor. It returns the errors of [jsonrpc.ReadAnswer] and
// [limits.Memory.TimesliceFor].
func ReadMessage(ctx context.Context, raw []byte, redactor *redact.Redactor, memory *limits.Memory) (*jsonrpc.Answer, error) {
	end, err := memory.TimesliceFor(ctx, len(raw))
	if err != nil {
		return nil, err
	}
	defer end()
	return jsonrpc.ReadAnswer(redactor.Answer(raw), jsonrpc.AnswerLimits())
}

// ReadRepaired does the same as [ReadMessage], but if parsing fails, it repairs known faults with [jsonrpc.Repair] and
// parses the answer again. The repair modifies raw. methodOf is passed to [jsonrpc.Repair].
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
