package dispatch

import (
	"context"

	"github.com/go-json-experiment/json"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/aggregate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

func identifierOf(field string) string {
	switch field {
	case "resources":
		return "uri"
	case "resourceTemplates":
		return "uriTemplate"
	default:
		return "name"
	}
}

// ignoresNames reports whether the policy treats all elements of a list in the same way, regardless of their names.
func ignoresNames(access visibility.Access, field string) bool {
	if field == "prompts" {
		return access.PromptNamesIgnored
	}
	return access.ResourceNamesIgnored
}

// FilterResult returns the edits that prepare an answer for the client, and reports whether the answer was filtered. In
// a list of prompts, resources or templates, the edits remove the elements that the caller may not use. If no rule
// depends on the elements' names, FilterResult does not call the policy service.
func (x *Exchange) FilterResult(ctx context.Context, answer *jsonrpc.Answer) (edits []jsonrpc.Edit, filtered bool, refused *refusal.Refusal) {
	field := aggregate.FieldOf(x.Message.Method)
	if field == "" || !answer.Result.Present() {
		return answer.Clean(nil), false, nil
	}
	switch access, err := x.Access(ctx); {
	case err != nil:
		return nil, false, PolicyUnavailable()
	case ignoresNames(access, field):
		return answer.Clean(nil), false, nil
	}
	list, err := x.listing(ctx, answer, field)
	if err != nil || !list.ToolList.Present() {
		return nil, false, &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, Message: "the server's answer is not a list, or can be read in more than one way."}
	}
	names := make([]string, 0, len(list.Tools))
	for _, t := range list.Tools {
		names = append(names, t.Name)
	}
	visible, err := x.Deps.Visibility.Names(ctx, x.Viewer(), x.Message.Method, names)
	if err != nil {
		return nil, false, FilterFailed(err)
	}
	return list.Clean(func(t jsonrpc.Tool) bool { return !visible[t.Name] }), true, nil
}

// listing parses the list in an answer. It needs one of the caller's time slices for processing.
func (x *Exchange) listing(ctx context.Context, answer *jsonrpc.Answer, field string) (*jsonrpc.Answer, error) {
	end, err := x.Slot.Answer.TimesliceFor(ctx, len(answer.Raw))
	if err != nil {
		return nil, err
	}
	defer end()
	return answer.Listing(field, identifierOf(field))
}

// mayReceiveUpdate reports whether the policy allows the client to receive m, a notification that a resource has
// changed. The caller must check first that m is such a notification.
func (x *Exchange) mayReceiveUpdate(m *jsonrpc.Answer) bool {
	access, err := x.Access(x.Uncancelled(x.ClientCtx))
	if err != nil || access.ResourceNamesIgnored {
		return err == nil
	}
	var about struct {
		URI string `json:"uri"`
	}
	if err := json.Unmarshal(m.Params.Of(m.Raw), &about); err != nil {
		return false
	}
	return x.Deps.Visibility.MayNotify(x.Uncancelled(x.ClientCtx), x.Viewer(), m.Method, about.URI)
}
