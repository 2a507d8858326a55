package edge

import (
	"context"

	"github.com/go-json-experiment/json"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/aggregate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/turn"
)

// maxNamed is the maximum length of a prompt's name or a URI about which policy is asked, in bytes. A longer one cannot
// be used in a request.
const maxNamed = 4096

// nameOf returns the member that identifies the elements of a list.
func nameOf(field string) string {
	switch field {
	case "resources":
		return "uri"
	case "resourceTemplates":
		return "uriTemplate"
	default:
		return "name"
	}
}

// alike reports whether policy distinguishes no elements of a list by name for the caller.
func alike(said reach.Standing, field string) bool {
	if field == "prompts" {
		return said.PromptsAlike
	}
	return said.ResourcesAlike
}

// narrowed returns the edits of an answer for the client, and whether the answer was filtered. Of a list of prompts,
// resources or templates the caller sees those that it may use. If no rule distinguishes them, policy is not asked.
func (x *exchange) narrowed(ctx context.Context, answer *gate.Answer) (edits []gate.Edit, filtered bool, refused *refusal.Refusal) {
	field := aggregate.FieldOf(x.msg.Method)
	if field == "" || !answer.Result.Present() {
		return answer.Clean(nil), false, nil
	}
	switch said, err := x.standing(ctx); {
	case err != nil:
		return nil, false, policyAway()
	case alike(said, field):
		return answer.Clean(nil), false, nil
	}
	list, err := x.listing(ctx, answer, field)
	if err != nil || !list.ToolList.Present() {
		return nil, false, &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, Message: "the server's answer is not a list, or can be read in more than one way."}
	}
	shown, refused := x.named(ctx, list)
	if refused != nil {
		return nil, false, refused
	}
	return list.Clean(func(t gate.Tool) bool { return !shown[t.Name] }), true, nil
}

// listing reads the list in an answer, in a time slice of the caller.
func (x *exchange) listing(ctx context.Context, answer *gate.Answer, field string) (*gate.Answer, error) {
	end, err := x.has.Answer.TurnFor(ctx, len(answer.Raw))
	if err != nil {
		return nil, err
	}
	defer end()
	return answer.Listing(field, nameOf(field))
}

// named asks policy which elements of a list the caller may see. An element without a usable name is hidden.
func (x *exchange) named(ctx context.Context, list *gate.Answer) (map[string]bool, *refusal.Refusal) {
	shown := make(map[string]bool, len(list.Tools))
	var asked []string
	for _, t := range list.Tools {
		if _, known := shown[t.Name]; !known && t.Name != "" && len(t.Name) <= maxNamed {
			asked = append(asked, t.Name)
			shown[t.Name] = false
		}
	}
	done, err := x.asking.Take(ctx, x.has.Of.Accounts.Root())
	if err != nil {
		return nil, tooManyLists()
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	revision := ""
	var stint turn.Stint
	for len(asked) > 0 {
		part := asked[:min(len(asked), maxPart)]
		asked = asked[len(part):]
		resp, ok := x.filterNames(ctx, x.msg.Method, part)
		if !ok || revision != "" && resp.GetPolicyRevision() != revision {
			return nil, policyAway()
		}
		revision = resp.GetPolicyRevision()
		for i, name := range part {
			shown[name] = resp.GetVisible()[i]
		}
		stint.Part() // if policy runs in this process, waiting calls run before the next part
	}
	return shown, nil
}

// filterNames asks policy which names in a list or a notification the caller may see. It returns false if policy does
// not answer.
func (x *exchange) filterNames(ctx context.Context, method string, names []string) (resp *policyv1.FilterNamesResponse, ok bool) {
	resp, err := x.deps.Policy.FilterNames(authn.OnBehalfOf(ctx, x.acting()), &policyv1.FilterNamesRequest{Server: x.server, Method: method, Names: names})
	if err != nil || len(resp.GetVisible()) != len(names) {
		x.deps.Log.WarnContext(ctx, "names not filtered by policy", "server", x.server, "mcp_method", method, "error", err)
		return nil, false
	}
	return resp, true
}

// hearsOf reports whether the client may be notified of a change of the notification's resource. Other notifications
// have none, so they pass.
func (x *exchange) hearsOf(m *gate.Answer) bool {
	if m.Method != mcp.MethodResourceUpdated {
		return true
	}
	said, err := x.standing(x.whole(x.client))
	if err != nil || said.ResourcesAlike {
		return err == nil
	}
	var about struct {
		URI string `json:"uri"`
	}
	if err := json.Unmarshal(m.Params.Of(m.Raw), &about); err != nil || about.URI == "" || len(about.URI) > maxNamed {
		return false
	}
	ctx, cancel := context.WithTimeout(x.whole(x.client), peerTimeout)
	defer cancel()
	resp, ok := x.filterNames(ctx, m.Method, []string{about.URI})
	return ok && resp.GetVisible()[0]
}
