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
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// owner returns a key that identifies the caller and the server. Tasks and their approvals belong to this key.
func (x *message) owner() []byte {
	owner := visibility.AppendCaller(nil, x.Principal, x.ServerName)
	if person := principal.ConnectionsOf(x.Principal); person != (principal.Key{}) { // two tokens of one subject can use the accounts of different people
		owner = visibility.AppendPart(visibility.AppendPart(owner, person.Tenant), person.Subject)
	}
	return owner
}

// rewriteTask adds the edits for an answer that contains a task. They replace the task's id with the id that the client
// uses, and remove members of the task's outcome that clients must not receive. rewriteTask refuses a task if the
// client does not accept tasks. It refuses an outcome that contains a request to the client.
func (x *message) rewriteTask(ctx context.Context, answer *jsonrpc.Answer, edits []jsonrpc.Edit) ([]jsonrpc.Edit, *refusal.Refusal) {
	var id, kind string
	_ = json.Unmarshal(answer.ResultType.Of(answer.Raw), &kind) // a type that is not a string is ignored
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

// Restore implements [protocol.Protocol]. It removes the gateway's own requestState, and replaces a task id with the
// server's own task id. It returns a refusal if the request must be refused.
func (x *message) Restore(ctx context.Context) *refusal.Refusal {
	if !x.Message.RequestState.Present() && !x.Message.TaskIDValue.Present() {
		return nil
	}
	end, err := x.Slot.Answer.TimesliceFor(ctx, len(x.Message.Raw))
	if err != nil {
		return protocol.UnreadableBody() // the caller has disconnected
	}
	defer end()
	if refused := x.takeRequestState(); refused != nil {
		return refused
	}
	return x.restoreTaskID()
}

// restoreTaskID replaces the task id in the request with the server's own task id. It returns a refusal if the gateway
// has not issued the id to this caller.
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

// unknownTask returns the refusal for a request about a task that does not belong to the caller.
func unknownTask() *refusal.Refusal {
	return refusal.ProtocolError(commonv1.Code_CODE_PARAMS_INVALID, "there is no such task of yours, or it no longer exists.")
}
