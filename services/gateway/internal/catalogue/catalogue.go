// Package catalogue tells the catalogue what servers list, and knows what it answered: the
// digest of each definition. A definition that it was not told of can't be called.
package catalogue

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
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/recent"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/canonical"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

const (
	// maxLists is how many lists' digests are kept, and maxKept how many digests they
	// may have together: what a server lists is its own to choose.
	maxLists = 4096
	maxKept  = 200_000
	// repeat is after how long a list is told again, so that it is known to be listed.
	repeat = time.Hour
	// reportTimeout bounds telling one.
	reportTimeout = 10 * time.Second
)

// The bound of a definition, as ReportTools has it, and of how many names are told of entries that break it or have a
// name that can't be called.
const (
	maxDefinition = 1 << 20
	maxLeftOut    = 1000
	maxLeftName   = 128
)

// refusals are why the catalogue takes a list at no time (ReportTools).
var refusals = []string{"TOOL_DUPLICATE", "LIST_INVALID", "LIST_TOO_LONG"} //nolint:gochecknoglobals // a constant, which Go has none of for slices

// ErrAway means that the catalogue could not be told, so that nothing of a list may be
// shown.
var ErrAway = errors.New("the catalogue did not take the list")

// ErrRefused means that the catalogue refused the list that a definition was looked for in.
var ErrRefused = errors.New("the catalogue refused the server's list")

// A List is where a list is from.
type List struct {
	// Server is the configured name, and Version the negotiated revision of MCP.
	Server, Version string
	// Whole says that it is all that the server lists.
	Whole bool
	// To is to whom it was listed.
	To *identityv1.Principal
}

// Known is what the catalogue answered. It does not change.
type Known struct {
	// Digests are those of the definitions by the tools' names; none of a tool that the
	// catalogue did not take, or that the list names twice.
	Digests map[string][]byte
	// Activation is the token of a revision from which on policy knows the list; empty
	// where the catalogue refused it.
	Activation string
	// Refused says that the catalogue refused the list, such as one that names a tool twice: which definition a call
	// would run by is not known.
	Refused bool
	// At is when it answered.
	At time.Time
}

// Reporter tells the catalogue. It is safe for concurrent use.
type Reporter struct {
	client policyv1.CatalogServiceClient
	log    *slog.Logger
	kept   *recent.Recent[[sha256.Size]byte, *Known]
}

// New returns a reporter that has told nothing.
func New(client policyv1.CatalogServiceClient, log *slog.Logger) (*Reporter, error) {
	if client == nil || log == nil {
		return nil, errors.New("catalogue: every dependency is required")
	}
	return &Reporter{
		client: client, log: log,
		kept: recent.New[[sha256.Size]byte](maxLists, maxKept, func(k *Known) int { return 1 + len(k.Digests) }),
	}, nil
}

// Kept is how many lists are kept, and what their digests weigh together.
func (r *Reporter) Kept() (lists, weight int) { return r.kept.Size() }

// Of returns what the catalogue knows of a list that is at most as old as age, and tells it
// where that is nothing. A whole list is always told. Errors wrap [ErrAway].
func (r *Reporter) Of(ctx context.Context, l List, answer *gate.Answer, age time.Duration) (*Known, error) {
	key := keyOf(l, answer)
	if known, ok := r.kept.Get(key); ok && !l.Whole && time.Since(known.At) <= min(age, repeat) {
		return known, nil
	}
	known, err := r.tell(ctx, l, answer)
	if err != nil {
		return nil, err
	}
	r.kept.Put(key, known)
	return known, nil
}

// keyOf names the bytes of a list under a server and a revision.
func keyOf(l List, answer *gate.Answer) [sha256.Size]byte {
	list := canonical.Hash(answer.ToolList.Of(answer.Raw))
	return sha256.Sum256(fmt.Appendf(nil, "%s %s %x", l.Server, l.Version, list))
}

// tell tells the catalogue a list. What it refuses has no digests.
func (r *Reporter) tell(ctx context.Context, l List, answer *gate.Answer) (*Known, error) {
	ctx, cancel := context.WithTimeout(authn.OnBehalfOf(ctx, l.To), reportTimeout)
	defer cancel()
	resp, sent, err := r.send(ctx, l, answer)
	known := &Known{At: time.Now(), Digests: make(map[string][]byte, len(sent)), Activation: resp.GetActivation()}
	switch {
	case slices.Contains(refusals, rpc.Reason(err)):
		r.log.WarnContext(ctx, "the catalogue refused a list, of which nothing is shown", "server", l.Server, "error", err)
		known.Refused = true
		return known, nil
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrAway, err)
	case len(resp.GetTools()) != len(sent):
		return nil, fmt.Errorf("%w: it answered with %d tools, of %d", ErrAway, len(resp.GetTools()), len(sent))
	}
	listed := make(map[string]int, len(answer.Tools)) // also what was not sent: another reader may call it
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

// send sends a list, and returns the names that were sent.
func (r *Reporter) send(ctx context.Context, l List, answer *gate.Answer) (resp *policyv1.ReportToolsResponse, sent []string, err error) {
	stream, err := r.client.ReportTools(ctx)
	if err != nil {
		return nil, nil, err
	}
	head := &policyv1.ReportHead{Server: l.Server, ProtocolVersion: l.Version, Whole: l.Whole}
	var tools []*policyv1.ToolDefinition
	for _, t := range answer.Tools {
		text := t.Definition.Of(answer.Raw)
		if !gate.IsToolName(t.Name) || len(text) > maxDefinition {
			if len(head.GetLeftOut()) < maxLeftOut {
				head.LeftOut = append(head.LeftOut, clip(t.Name))
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
	resp, err = stream.CloseAndRecv() // which says why sending failed
	return resp, sent, err
}

// clip cuts a name as the contract has it, between two characters.
func clip(name string) string {
	if len(name) <= maxLeftName {
		return name
	}
	name = name[:maxLeftName]
	for len(name) > 0 && name[len(name)-1]&0xC0 == 0x80 {
		name = name[:len(name)-1]
	}
	return name[:max(0, len(name)-1)]
}
