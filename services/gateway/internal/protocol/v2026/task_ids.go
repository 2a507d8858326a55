package v2026

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

// owner returns the key of the caller to which its tasks on the server belong. Approvals are bound to the same key.
func (x *message) owner() []byte {
	return visibility.AppendCaller(nil, x.Principal, x.ServerName)
}

// rewriteTask adds the edits that replace the id of a task in an answer by the id that the client uses. Further edits
// remove from the task's outcome what must not go to a client. It refuses a task if the client does not accept tasks,
// and an outcome that has a request for the client.
func (x *message) rewriteTask(ctx context.Context, answer *jsonrpc.Answer, edits []jsonrpc.Edit) ([]jsonrpc.Edit, *refusal.Refusal) {
	var id, kind string
	_ = json.Unmarshal(answer.ResultType.Of(answer.Raw), &kind) // a non-string type is ignored
	asked := strings.HasPrefix(x.Message.Method, "tasks/")
	switch {
	case kind == mcp.ResultTask && (!x.declaresTasks || x.Message.Method != mcp.MethodToolsCall):
		return nil, x.UnusableAnswer(ctx, "the server answered with a task, though the request did not declare that the client accepts tasks.")
	case kind != mcp.ResultTask && !asked || !answer.TaskID.Present():
		return edits, nil
	case json.Unmarshal(answer.TaskID.Of(answer.Raw), &id) != nil:
		return nil, x.UnusableAnswer(ctx, "the server answered with a task id that is not a string.")
	}
	with, err := json.Marshal(x.taskIDs.ForClient(x.owner(), id))
	if err != nil {
		return nil, x.UnusableAnswer(ctx, "the server answered with a task id that is not a string.")
	}
	edits = append(edits, jsonrpc.Edit{Span: answer.TaskID, With: with})
	for key, at := range map[string]jsonrpc.Span{"result": answer.TaskResult, "error": answer.TaskError} {
		if !asked || !at.Present() {
			continue
		}
		end, err := jsonrpc.ReadAnswer(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":0,"%s":%s}`, key, at.Of(answer.Raw)), jsonrpc.AnswerLimits())
		if err != nil || end.InputRequests.Present() || upstream.HasCode(end, mcp.CodeElicitation) {
			return nil, x.UnusableAnswer(ctx, "the outcome of the task has a request for the client, or can be read in two ways.")
		}
		if foreign := end.Clean(nil); len(foreign) > 0 {
			clean, err := jsonrpc.ApplyEdits(end.Raw, foreign...)
			if err != nil {
				return nil, x.UnusableAnswer(ctx, "the outcome of the task could not be cleaned.")
			}
			prefix := len(fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"%s":`, key))
			edits = slices.DeleteFunc(edits, func(e jsonrpc.Edit) bool { return at.Start <= e.Span.Start && e.Span.End <= at.End })
			edits = append(edits, jsonrpc.Edit{Span: at, With: clean[prefix : len(clean)-1]})
		}
	}
	return edits, nil
}

// Restore replaces what the gateway gave the client by what the server reads: it removes the gateway's own
// requestState, and puts the server's own task id in. It returns nil if the request can be decided.
func (x *message) Restore(ctx context.Context) *refusal.Refusal {
	if !x.Message.RequestState.Present() && !x.Message.TaskIDValue.Present() {
		return nil
	}
	end, err := x.Slot.Answer.TimesliceFor(ctx, len(x.Message.Raw))
	if err != nil {
		return protocol.UnreadableBody() // the caller has stopped waiting
	}
	defer end()
	if refused := x.takeRequestState(); refused != nil {
		return refused
	}
	return x.restoreTaskID()
}

// restoreTaskID puts the server's own task id into the request. It refuses an id that was not made for the caller.
func (x *message) restoreTaskID() *refusal.Refusal {
	if !x.Message.TaskIDValue.Present() || x.IsOwnTask() {
		return nil
	}
	id, ok := x.taskIDs.ForServer(x.owner(), x.Message.TaskID)
	if !ok {
		return unknownTask()
	}
	encoded, err := json.Marshal(id)
	var raw []byte
	if err == nil {
		raw, err = jsonrpc.ApplyEdits(x.Message.Raw, jsonrpc.Edit{Span: x.Message.TaskIDValue, With: encoded})
	}
	m := x.Message
	if err == nil {
		m, err = jsonrpc.Parse(raw, x.Limits)
	}
	if err != nil {
		return unknownTask()
	}
	x.Message = m
	return nil
}

// unknownTask refuses a request about a task that is not the caller's.
func unknownTask() *refusal.Refusal {
	return refusal.ProtocolError(commonv1.Code_CODE_PARAMS_INVALID, "there is no such task of yours, or none any more.")
}
