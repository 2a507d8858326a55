package visibility

import (
	"context"
	"crypto/sha256"

	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/gosched"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// maxFilters limits how many lists the policy service filters at the same time. maxFiltersEach limits how many of
	// them belong to one person.
	maxFilters     = 64
	maxFiltersEach = 2
	// maxToolName limits the length of a tool's name, in bytes. Tools with longer names, which MCP does not allow, are
	// hidden without a request to the policy service.
	maxToolName = 128
	// maxPart limits how many names one request to the policy service contains. A longer list needs several requests,
	// and all responses must have the same policy revision.
	maxPart = 512
)

// Caller is the caller for which a server's list is filtered.
type Caller struct {
	// Principal is the authenticated caller, and is never nil. Session and Run are the session and the run of the
	// caller's message. The records of policy decisions contain them.
	Principal    *identityv1.Principal
	Session, Run string
	// Owner is the principal whose quota limits how many lists are filtered at the same time.
	Owner principal.Key
	// Server is the configured name of the server.
	Server string
}

func (c Caller) behalf(ctx context.Context) context.Context {
	p := proto.CloneOf(c.Principal)
	p.Session, p.Run = c.Session, c.Run
	return authn.OnBehalfOf(ctx, p)
}

// Tools contains the policy service's response about a list's tools for one caller.
type Tools struct {
	// Visible has an entry for each tool in the request to the policy service. The entry is true if the caller may see
	// the tool.
	Visible map[string]bool
	// Revision is the policy revision of the response.
	Revision string
	// NeedsApproval is true if at least one visible tool requires an approval for every call.
	NeedsApproval bool
	// Unaccepted is true if a tool is hidden because its definition differs from the accepted definition, or because it
	// is not known whether its definition was accepted.
	Unaccepted bool
	// Changed contains the tools whose definitions differ from the accepted definitions.
	Changed map[string]bool

	// hidesSome is true if at least one tool is not visible.
	hidesSome bool
}

// Hides reports whether the caller may not see a tool.
func (t *Tools) Hides(tool jsonrpc.Tool) bool { return !t.Visible[tool.Name] }

// Digests returns the digests of the visible and the changed tools. The policy service evaluates a session's calls with
// the definitions that the server lists to this session, even if the server lists other definitions to other sessions.
// A changed tool without a known digest gets a digest that matches no definition, so that calls to it are denied.
func (t *Tools) Digests(known map[string][]byte) map[string][]byte {
	if !t.hidesSome {
		return known
	}
	out := make(map[string][]byte, len(known))
	for name, digest := range known {
		if t.Visible[name] || t.Changed[name] {
			out[name] = digest
		}
	}
	for name := range t.Changed {
		if out[name] == nil {
			out[name] = make([]byte, sha256.Size)
		}
	}
	return out
}

// Tools asks the policy service which tools of a list the caller may see. It also hides tools whose name the list
// contains twice, because clients may use either definition, and a server's tool that has the name of the gateway's own
// tool. If Tools fails, it returns [ErrPolicy] or [ErrBusy].
func (v *Visibility) Tools(ctx context.Context, c Caller, list *jsonrpc.Answer, known *toolreport.Response) (*Tools, error) {
	asked, listed := toolRefs(list, known)
	done, err := v.filters.Acquire(ctx, c.Owner)
	if err != nil {
		return nil, ErrBusy
	}
	defer done()
	ctx, cancel := context.WithTimeout(c.behalf(ctx), policyTimeout)
	defer cancel()
	out := &Tools{Visible: make(map[string]bool, len(asked)), Changed: make(map[string]bool)}
	var stint gosched.Work
	for first := true; first || len(asked) > 0; first = false {
		part := asked[:min(len(asked), maxPart)]
		asked = asked[len(part):]
		resp, err := v.deps.Policy.FilterTools(ctx, &policyv1.FilterToolsRequest{Server: c.Server, Tools: part, MinRevision: known.Activation})
		if err != nil || len(resp.GetTools()) != len(part) || !first && resp.GetPolicyRevision() != out.Revision {
			v.deps.Log.WarnContext(ctx, "tool list not filtered by policy", "server", c.Server, "error", err)
			return nil, ErrPolicy
		}
		out.Revision = resp.GetPolicyRevision()
		for _, t := range resp.GetTools() {
			out.add(t, listed[t.GetName()] == 1)
		}
		stint.Part() // lets waiting calls run first if the policy service is in this process
	}
	return out, nil
}

// toolRefs returns the references to a list's tools for the request to the policy service. It also returns how often
// each name occurs in the list.
func toolRefs(list *jsonrpc.Answer, known *toolreport.Response) (refs []*policyv1.ToolRef, listed map[string]int) {
	listed = make(map[string]int, len(list.Tools))
	for _, t := range list.Tools {
		if t.Name == "" || len(t.Name) > maxToolName || t.Name == mcp.ToolApprovalWait {
			continue
		}
		if listed[t.Name]++; listed[t.Name] == 1 {
			refs = append(refs, &policyv1.ToolRef{Name: t.Name, DefinitionDigest: known.Digests[t.Name]})
		}
	}
	return refs, listed
}

// add adds the policy service's response about one tool. unique is true if the list contains the tool's name only once.
func (t *Tools) add(tool *policyv1.ToolVisibility, unique bool) {
	visible, code := tool.GetVisible() && unique, tool.GetCode()
	changed := !visible && code == commonv1.Code_CODE_TOOL_CHANGED
	t.Visible[tool.GetName()] = visible
	t.hidesSome = t.hidesSome || !visible
	if changed {
		t.Changed[tool.GetName()] = true
	}
	t.Unaccepted = t.Unaccepted || changed || !visible && code == commonv1.Code_CODE_TOOL_UNKNOWN && tool.GetRule() == nil
	t.NeedsApproval = t.NeedsApproval || visible && code == commonv1.Code_CODE_APPROVAL_REQUIRED
}
