package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy"
)

func (t *tool) policyPropose() *cobra.Command {
	var server, since string
	c := &cobra.Command{
		Use:   "propose --server NAME [--since TIME]",
		Short: "Write a policy for a server, from its recorded calls and their arguments",
		Long: `Write a policy document for a server to standard output, from the calls that agents of your
tenant have sent without a person's approval. Each tool that was called has a rule with a rate
limit and a condition that permits the recorded arguments. Comments list the calls behind each
rule, and arguments without a bound. All other calls are denied.

Set ` + "`record: {arguments: redacted}`" + ` for the server first. Without a bound for each argument,
only tools that read and have a low risk are allowed. Tools that delete, overwrite or move
money, and tools whose class is unknown or whose definition is not accepted, always need an
approval. The command needs an operator's token. Read the document before you use it: it also
permits recorded calls that were mistakes.`,
		Example: "  " + t.self + " policy propose --server files --since 24h > files.yaml",
		Args:    args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			filter := new(gatewayv1.DecisionFilter)
			if err := setTimes(filter, since, "", time.Now()); err != nil {
				return usageError{err}
			}
			return t.propose(c.Context(), server, filter.GetSince())
		},
	}
	c.Flags().StringVar(&server, "server", "", "the server's name")
	c.Flags().StringVar(&since, "since", "24h", "only calls since this time: 15m, 2h or 7d ago, or RFC 3339")
	_ = c.MarkFlagRequired("server")
	_ = c.RegisterFlagCompletionFunc("server", t.completeServer)
	_ = c.RegisterFlagCompletionFunc("since", cobra.NoFileCompletions)
	return c
}

func (t *tool) propose(ctx context.Context, server string, since *timestamppb.Timestamp) error {
	tools, err := t.listedTools(ctx, server)
	if err != nil {
		return err
	}
	client, done, err := t.gatewayClient()
	if err != nil {
		return err
	}
	defer done()
	seen := newSentCalls()
	if err := t.readSentCalls(ctx, client, seen, server, since); err != nil {
		return err
	}
	if len(seen.byTool) == 0 {
		return fmt.Errorf("no call to a tool of %s was sent since %s: set `mode: observe` for the server, or an earlier --since", server, formatTime(since))
	}
	home, _ := os.UserHomeDir() // if this fails, Propose still knows the usual home folders
	made, err := policy.Propose(server, seen.tools(tools), home)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.errOut, "sluice: the document allows %d of the %s; a person decides on the others, or they are denied\n",
		made.Allowed, countOfCalls(int64(made.Allowed+made.Refused)))
	if t.json() {
		return t.printJSON(map[string]any{"server": server, "document": string(made.Document), "allowed": made.Allowed, "refused": made.Refused})
	}
	_, err = t.out.Write(made.Document)
	return err
}

// listedTools returns a server's tools and their definitions from the catalog of the running mesh.
func (t *tool) listedTools(ctx context.Context, server string) ([]policy.ObservedTool, error) {
	client, done, err := t.catalogClient()
	if err != nil {
		return nil, err
	}
	defer done()
	all, err := t.readCatalog(ctx, client, server)
	if err != nil {
		return nil, err
	}
	var out []policy.ObservedTool
	for _, page := range all.Tools {
		if page.GetListedNow() {
			out = append(out, policy.ObservedTool{
				ClassifiedTool: policy.ClassifiedTool{Name: page.GetName(), Classification: page.GetClassification()},
				Definition:     page.GetDefinitionJson(), Digest: page.GetDefinitionDigest(), NotAccepted: notAccepted(page),
			})
		}
	}
	return out, nil
}

// notAccepted returns why the catalog refuses calls to a tool, or "" if it does not refuse them.
func notAccepted(page *policyv1.CatalogTool) string {
	accepted := page.GetPin() == policyv1.PinState_PIN_STATE_ACCEPTED || page.GetPin() == policyv1.PinState_PIN_STATE_OFF
	switch {
	case page.GetServerQuarantined():
		return "its server is in quarantine"
	case page.GetQuarantined():
		return "it is in quarantine"
	case page.GetStopped(), !accepted:
		return "its definition is not accepted"
	}
	return ""
}

// readSentCalls reads the calls to a server's tools since the given time. It reports progress on standard error.
func (t *tool) readSentCalls(ctx context.Context, client gatewayv1.GatewayServiceClient, seen *sentCalls, server string, since *timestamppb.Timestamp) error {
	kinds := []gatewayv1.RecordKind{gatewayv1.RecordKind_RECORD_KIND_INTENT, gatewayv1.RecordKind_RECORD_KIND_OUTCOME}
	req := &gatewayv1.ListDecisionsRequest{Filter: &gatewayv1.DecisionFilter{Server: server, Kinds: kinds, Since: since}, PageSize: maxPage, WithArguments: true}
	for lastReport := time.Now(); ; {
		page, err := listDecisionsPage(ctx, client, req)
		if err != nil {
			return t.explainError(err)
		}
		for _, r := range page.GetRecords() {
			if err := seen.add(r); err != nil {
				return err
			}
			if time.Since(lastReport) > progressInterval {
				lastReport = time.Now()
				fmt.Fprintf(t.errOut, "sluice: read %s so far, back to %s\n", countOfCalls(seen.count), localTime(r.GetTime().AsTime()))
			}
		}
		if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" {
			return nil
		}
	}
}

// maxSentCalls is the maximum number of calls from which a policy is proposed.
const maxSentCalls = 200_000

var errTooManyCalls = errors.New("there are more than 200000 calls: use a shorter time in --since")

// sentCalls contains calls that were sent without a person's approval.
type sentCalls struct {
	uses   toolUses
	byTool map[string][]policy.ObservedCall
	count  int64
	// sent contains the ids of decisions for which the outcome record was read, but not yet the intent record. The outcome
	// record shows that the call was sent.
	sent map[string]bool
}

func newSentCalls() *sentCalls {
	return &sentCalls{uses: make(toolUses), byTool: make(map[string][]policy.ObservedCall), sent: make(map[string]bool)}
}

// add adds a record. Records must be added from newest to oldest, so that the outcome of a call precedes its intent.
// add counts only calls that were sent according to their outcome. It does not count calls that a person approved,
// because they do not show that the tool may be used without approval.
func (o *sentCalls) add(r *gatewayv1.Record) error {
	id := r.GetDecisionId()
	if r.GetKind() == gatewayv1.RecordKind_RECORD_KIND_OUTCOME {
		if r.GetResult() != gatewayv1.ResultClass_RESULT_CLASS_NEVER_SENT && r.GetResult() != gatewayv1.ResultClass_RESULT_CLASS_UNSPECIFIED {
			o.sent[id] = true
		}
		return nil
	}
	sent := o.sent[id]
	delete(o.sent, id)
	allowed := r.GetEffect() == policyv1.Effect_EFFECT_ALLOW && r.GetApprovalId() == "" && r.GetGrant() == ""
	if !sent || !allowed || r.GetKind() != gatewayv1.RecordKind_RECORD_KIND_INTENT || r.GetMethod() != "tools/call" || r.GetFromServer() {
		return nil
	}
	if o.count++; o.count > maxSentCalls {
		return errTooManyCalls
	}
	one := policy.ObservedCall{ID: id, Time: r.GetTime().AsTime(), Definition: r.GetDefinitionDigest()}
	if len(r.GetArgumentsHmac()) > 0 {
		recorded := r.GetRecordedArguments()
		one.Arguments, one.Redacted, one.NotRecorded = recorded.GetArgumentsJson(), recorded.GetRedacted(), recorded.GetArgumentsJson() == ""
	}
	o.uses.add(r)
	o.byTool[r.GetTool()] = append(o.byTool[r.GetTool()], one)
	return nil
}

// tools returns the listed tools with their calls. It also returns tools that were called but are not listed any more.
func (o *sentCalls) tools(listed []policy.ObservedTool) []policy.ObservedTool {
	uses := o.uses.byTool()
	isListed := make(map[string]bool)
	for i := range listed {
		one := &listed[i]
		isListed[one.Name] = true
		one.Calls, one.Use = o.byTool[one.Name], uses[one.Name]
	}
	for name, calls := range o.byTool {
		if !isListed[name] {
			listed = append(listed, policy.ObservedTool{ClassifiedTool: policy.ClassifiedTool{Name: name}, Unlisted: true, Calls: calls, Use: uses[name]})
		}
	}
	slices.SortStableFunc(listed, func(a, b policy.ObservedTool) int { return strings.Compare(a.Name, b.Name) })
	return listed
}
