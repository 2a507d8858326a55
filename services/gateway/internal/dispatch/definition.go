package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	// maxPages is the maximum number of pages of a list that are read to find a tool.
	maxPages = 100
	// lookupInterval is the minimum time between two searches for a tool in which a session reads the server's whole list.
	lookupInterval = 30 * time.Second
	// anyAge is the maximum age for accepting a list of any age.
	anyAge = math.MaxInt64
)

var errNotToolList = errors.New("the server's answer is not a list of tools")

// reportTools reports the tools in a server's answer to the catalog, and returns the catalog's response. It uses a
// cached response if the response is not older than maxAge.
func (x *Exchange) reportTools(ctx context.Context, answer *jsonrpc.Answer, maxAge time.Duration) (*toolreport.Response, error) {
	version := x.Session.Version
	if found := x.Server.Own().Last(); found != nil && x.Era.TranslatesRevisions() {
		version = found.Version // the server lists its tools in this revision, even if the client uses another revision
	}
	list := toolreport.List{Server: x.ServerName, Version: version, Recipient: x.Principal, OfPerson: x.Server.ForEachPerson}
	return x.Deps.Catalogue.Report(ctx, list, answer, maxAge)
}

// latestDiscovery returns the gateway's own list of the server's tools, or nil if the list could not be read. It waits
// only if there is no list yet.
func latestDiscovery(ctx context.Context, server *discovery.Server) *discovery.Result {
	if found := server.Last(); found != nil {
		server.RefreshInBackground(discovery.Fresh)
		return found
	}
	found, err := server.Get(ctx, discovery.Fresh)
	if err != nil {
		return nil
	}
	return found
}

// Known returns the digest of the called tool's definition. It uses the session's list if that list contains the tool,
// and otherwise the gateway's own list. It returns nil if neither list contains the tool.
func (x *Exchange) Known(ctx context.Context) []byte {
	if digest := x.Addressing.ListedDigest(x.Message.Name); digest != nil {
		return digest
	}
	if found := latestDiscovery(ctx, x.Discovery); found != nil {
		return found.Known.Digests[x.Message.Name]
	}
	return nil
}

// Definition returns the digest of the called tool's definition. If relist is false and [Exchange.Known] returns a
// digest, Definition returns that digest. Otherwise, it lists the server's tools in this session. It returns nil if the
// server does not list the tool, or if the message is not a tools/call.
func (x *Exchange) Definition(ctx context.Context, relist bool) ([]byte, error) {
	if x.Message.Method != mcp.MethodToolsCall {
		return nil, nil
	}
	if !relist {
		if digest := x.Known(ctx); digest != nil {
			return digest, nil
		}
		// If the list could not be reported to the catalog, the call fails here. Otherwise, the catalog would treat the
		// definition as new.
		if err := x.Discovery.ReportError(); err != nil {
			return nil, err
		}
		if time.Since(time.Unix(0, x.Session.LastLookup.Load())) < lookupInterval {
			return nil, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, x.Timeout)
	defer cancel()
	memory := x.Slot.Answer.Sibling()
	defer memory.Close()
	var cursor string
	given := make(map[string]bool)
	for range maxPages {
		if given[cursor] {
			return nil, fmt.Errorf("%w: a page repeats the cursor of an earlier page", errNotToolList)
		}
		given[cursor] = true
		memory.Settle(0) // the memory of a page is released before the next page is read
		answer, err := x.page(ctx, cursor, memory)
		if err != nil {
			return nil, err
		}
		known, err := x.reportTools(ctx, answer, anyAge)
		if err != nil {
			return nil, err
		}
		if known.Refused {
			return nil, toolreport.ErrRefused
		}
		if digest := known.Digests[x.Message.Name]; digest != nil {
			// A tool's first definition can be accepted only after the gateway itself has read the server's whole list.
			if x.Discovery.Last() == nil {
				x.Discovery.GetWithRetry(ctx)
			}
			// Only this tool's digest is stored, because the list may contain tools that are hidden from the caller.
			x.Deps.Sessions.Learn(x.Session, map[string][]byte{x.Message.Name: digest})
			return digest, nil
		}
		if cursor = jsonrpc.Unquote(answer.NextCursor.Of(answer.Raw)); cursor == "" {
			x.Session.LastLookup.Store(time.Now().UnixNano())
			return nil, nil
		}
	}
	return nil, fmt.Errorf("%w: it has more than %d pages", errNotToolList, maxPages)
}

// EnsureListed implements [attempt.Tools].
func (x *Exchange) EnsureListed(ctx context.Context) (listed bool, refused *refusal.Refusal) {
	missing := x.missingDiscovery()
	if missing == nil {
		return false, nil
	}
	if _, err := missing.Get(ctx, discovery.Fresh); err != nil {
		return false, x.notListed(ctx, err)
	}
	return true, nil
}

// missingDiscovery returns a discovery that has to list the server's tools before a tool's first definition can be
// accepted. It returns nil if the gateway has all necessary lists.
func (x *Exchange) missingDiscovery() *discovery.Server {
	found := x.Discovery.Last()
	if found == nil {
		return x.Discovery
	}
	revision := x.Server.Revision(x.Session.Version)
	if x.Era.TranslatesRevisions() || revision == nil || revision.Last() != nil || found.Version == x.Session.Version {
		return nil
	}
	return revision
}

// notListed returns the refusal for a call if the gateway itself could not list the server's tools because of err.
func (x *Exchange) notListed(ctx context.Context, err error) *refusal.Refusal {
	refused := x.DiscoveryFailed(ctx, err)
	why := "the policy service did not accept the list"
	if refused.Code != commonv1.Code_CODE_POLICY_UNAVAILABLE {
		refused.Code = commonv1.Code_CODE_UPSTREAM_UNAVAILABLE // not a timeout, because the call itself was not sent
		why = cmp.Or(discovery.ListFault(err), upstream.PublicReason(upstream.Answer{}, err))
	}
	refused.Message = "the gateway could not list the server's tools, so it can't tell whether this tool's definition is accepted: " + why +
		"; make the call again later, or ask an operator to run `sluice doctor`."
	return refused
}

// page requests one page of the server's list on behalf of the gateway.
func (x *Exchange) page(ctx context.Context, cursor string, memory *limits.Memory) (*jsonrpc.Answer, error) {
	answer, err := x.Session.Upstream.SendRequest(ctx, upstream.ListTools(cursor, x.AsClient), memory, nil)
	if err != nil {
		return nil, err
	}
	if !answer.Message.ToolList.Present() {
		return nil, errNotToolList
	}
	return answer.Message, nil
}
