// Package toolreport reports servers' tool lists to the policy service's catalog, and caches the catalog's responses. A
// response contains the digests of the tools' definitions. A tool cannot be called before its definition has been
// reported.
package toolreport

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
	"github.com/sluice-mesh/sluice/services/internal/lru"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

const (
	// maxLists is the maximum number of cached lists. maxWeight is the maximum number of cached lists and digests
	// together. Both limits are needed, because a server chooses the size of its lists.
	maxLists  = 4096
	maxWeight = 200_000
	// reportInterval is the minimum time between two reports of an unchanged list. Unchanged lists are reported again so
	// that the catalog knows that the server still lists these tools.
	reportInterval = time.Hour
	// reportTimeout is the timeout of one report.
	reportTimeout = 10 * time.Second
)

// These are limits of ReportTools. maxDefinition is the maximum size of a tool's definition, in bytes. A tool is
// omitted from the report if its definition is larger or if its name cannot be called. The report instead contains the
// names of up to maxLeftOut omitted tools, truncated to maxLeftName bytes.
const (
	maxDefinition = 1 << 20
	maxLeftOut    = 1000
	maxLeftName   = 128
)

// refusals contains the error reasons that ReportTools returns if it refuses a list permanently.
var refusals = []string{"TOOL_DUPLICATE", "LIST_INVALID", "LIST_TOO_LONG"} //nolint:gochecknoglobals // a constant; Go has no constant slices

// ErrNotReported means that the list could not be reported to the catalog. None of its tools may be shown to clients.
var ErrNotReported = errors.New("the catalog did not accept the list")

// ErrRefused means that the catalog has refused the server's list. The gateway therefore does not know the definitions
// of the tools.
var ErrRefused = errors.New("the catalog refused the server's list")

// A List describes a tool list, except for its content.
type List struct {
	// Server is the configured name of the server, and Version is the negotiated protocol revision.
	Server, Version string
	// Complete is true if the list contains all of the server's tools.
	Complete bool
	// Recipient is the principal that receives the list.
	Recipient *identityv1.Principal
	// OfPerson is true if the server has sent the list to the account of a person. The catalog then does not store it.
	OfPerson bool
}

// Response is the catalog's response to a list. It is immutable.
type Response struct {
	// Digests maps the names of the tools to the digests of their definitions. A tool has no digest if the catalog did
	// not accept the tool, or if the list contains the tool's name twice.
	Digests map[string][]byte
	// Activation is the token of the first policy revision that takes the list into account. It is empty if the catalog
	// refused the list.
	Activation string
	// Refused is true if the catalog refused the list. One possible reason is that a tool's name occurs twice. In that
	// case, it is not known which definition a call would use.
	Refused bool
	// At is the time of the catalog's response.
	At time.Time
}

// Reporter reports lists to the catalog. It is safe for concurrent use.
type Reporter struct {
	client policyv1.CatalogServiceClient
	log    *slog.Logger
	cache  *lru.Cache[[sha256.Size]byte, *Response]
}

// New returns a reporter with an empty cache, or an error if an argument is nil.
func New(client policyv1.CatalogServiceClient, log *slog.Logger) (*Reporter, error) {
	if client == nil || log == nil {
		return nil, errors.New("catalogue: every dependency is required")
	}
	return &Reporter{
		client: client, log: log,
		cache: lru.New[[sha256.Size]byte](maxLists, maxWeight, func(k *Response) int { return 1 + len(k.Digests) }),
	}, nil
}

// CacheSize returns the number of cached lists, and their total weight. Each list and each digest adds one to the
// weight.
func (r *Reporter) CacheSize() (lists, weight int) { return r.cache.Size() }

// Report returns the catalog's response to a list. If the list is not complete, Report may return a cached response
// that is at most age and at most reportInterval old. Otherwise it reports the list and caches the response. All errors
// wrap [ErrNotReported].
func (r *Reporter) Report(ctx context.Context, l List, answer *jsonrpc.Answer, age time.Duration) (*Response, error) {
	key := keyOf(l, answer)
	if known, ok := r.cache.Get(key); ok && !l.Complete && time.Since(known.At) <= min(age, reportInterval) {
		return known, nil
	}
	known, err := r.reportList(ctx, l, answer)
	if err != nil {
		return nil, err
	}
	r.cache.Put(key, known)
	return known, nil
}

// keyOf returns a hash of a list's bytes, its server and its protocol revision.
func keyOf(l List, answer *jsonrpc.Answer) [sha256.Size]byte {
	list := canonicaljson.Hash(answer.ToolList.Of(answer.Raw))
	return sha256.Sum256(fmt.Appendf(nil, "%s %s %x", l.Server, l.Version, list))
}

// reportList reports a list to the catalog and returns the response. If the catalog refuses the list, the response has
// no digests.
func (r *Reporter) reportList(ctx context.Context, l List, answer *jsonrpc.Answer) (*Response, error) {
	ctx, cancel := context.WithTimeout(authn.OnBehalfOf(ctx, l.Recipient), reportTimeout)
	defer cancel()
	resp, sent, err := r.send(ctx, l, answer)
	known := &Response{At: time.Now(), Digests: make(map[string][]byte, len(sent)), Activation: resp.GetActivation()}
	switch {
	case slices.Contains(refusals, rpc.Reason(err)):
		r.log.WarnContext(ctx, "the catalog refused a list; none of its tools is shown", "server", l.Server, "error", err)
		known.Refused = true
		return known, nil
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrNotReported, err)
	case len(resp.GetTools()) != len(sent):
		return nil, fmt.Errorf("%w: it answered with %d tools instead of %d", ErrNotReported, len(resp.GetTools()), len(sent))
	}
	listed := make(map[string]int, len(answer.Tools)) // includes tools that were not sent, because clients can call these, too
	for _, t := range answer.Tools {
		listed[t.Name]++
	}
	for i, t := range resp.GetTools() {
		if digest := t.GetDefinitionDigest(); len(digest) == sha256.Size && listed[sent[i]] == 1 {
			known.Digests[sent[i]] = digest
		}
	}
	return known, nil
}

// send sends a list to the catalog. It returns the catalog's response and the names of the tools that it has sent.
func (r *Reporter) send(ctx context.Context, l List, answer *jsonrpc.Answer) (resp *policyv1.ReportToolsResponse, sent []string, err error) {
	stream, err := r.client.ReportTools(ctx)
	if err != nil {
		return nil, nil, err
	}
	head := &policyv1.ReportHead{Server: l.Server, ProtocolVersion: l.Version, Whole: l.Complete, AccountOfPerson: l.OfPerson}
	var tools []*policyv1.ToolDefinition
	for _, t := range answer.Tools {
		text := t.Definition.Of(answer.Raw)
		if !jsonrpc.IsToolName(t.Name) || len(text) > maxDefinition {
			if len(head.GetLeftOut()) < maxLeftOut {
				head.LeftOut = append(head.LeftOut, truncateName(t.Name))
			}
			continue
		}
		tools = append(tools, &policyv1.ToolDefinition{Name: t.Name, DefinitionJson: string(text)})
		sent = append(sent, t.Name)
	}
	failed := stream.Send(&policyv1.ReportToolsRequest{Part: &policyv1.ReportToolsRequest_Head{Head: head}})
	for i := 0; i < len(tools) && failed == nil; i++ {
		failed = stream.Send(&policyv1.ReportToolsRequest{Part: &policyv1.ReportToolsRequest_Tool{Tool: tools[i]}})
	}
	resp, err = stream.CloseAndRecv() // also returns the cause of a failed Send
	return resp, sent, err
}

// truncateName shortens a name to the length that ReportTools accepts. It does not split a character.
func truncateName(name string) string {
	if len(name) <= maxLeftName {
		return name
	}
	name = name[:maxLeftName]
	for len(name) > 0 && name[len(name)-1]&0xC0 == 0x80 {
		name = name[:len(name)-1]
	}
	return name[:max(0, len(name)-1)]
}
