package visibility

import (
	"context"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

// maxName limits the length of a prompt's name or a resource's URI, in bytes. A longer name is never visible, because
// it cannot be used in a request to a server.
const maxName = 4096

// Names asks the policy service which names in the result of a list method the caller may see, for example which URIs
// in the result of resources/list. A name that is empty or has more than 4096 bytes is not visible. If Names fails, it
// returns [ErrPolicy] or [ErrBusy].
func (v *Visibility) Names(ctx context.Context, c Caller, method string, names []string) (map[string]bool, error) {
	visible := make(map[string]bool, len(names))
	var asked []string
	for _, name := range names {
		if _, known := visible[name]; !known && name != "" && len(name) <= maxName {
			asked = append(asked, name)
			visible[name] = false
		}
	}
	done, err := v.filters.Acquire(ctx, c.Owner)
	if err != nil {
		return nil, ErrBusy
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, policyTimeout)
	defer cancel()
	revision := ""
	var stint gosched.Work
	for len(asked) > 0 {
		part := asked[:min(len(asked), maxPart)]
		asked = asked[len(part):]
		resp, err := v.filterNames(ctx, c, method, part)
		if err != nil || revision != "" && resp.GetPolicyRevision() != revision {
			return nil, ErrPolicy
		}
		revision = resp.GetPolicyRevision()
		for i, name := range part {
			visible[name] = resp.GetVisible()[i]
		}
		stint.Part() // lets waiting calls run first if the policy service is in this process
	}
	return visible, nil
}

// MayNotify reports whether the caller may receive a notification about the resource or prompt with the given name. It
// returns false if the name is empty or has more than 4096 bytes, or if the policy service is unavailable.
func (v *Visibility) MayNotify(ctx context.Context, c Caller, notification, name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, policyTimeout)
	defer cancel()
	resp, err := v.filterNames(ctx, c, notification, []string{name})
	return err == nil && resp.GetVisible()[0]
}

func (v *Visibility) filterNames(ctx context.Context, c Caller, method string, names []string) (*policyv1.FilterNamesResponse, error) {
	resp, err := v.deps.Policy.FilterNames(c.behalf(ctx), &policyv1.FilterNamesRequest{Server: c.Server, Method: method, Names: names})
	if err == nil && len(resp.GetVisible()) != len(names) {
		err = ErrPolicy
	}
	if err != nil {
		v.deps.Log.WarnContext(ctx, "names not filtered by policy", "server", c.Server, "mcp_method", method, "error", err)
	}
	return resp, err
}
