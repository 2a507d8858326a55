package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/policy"
)

const (
	// maxDiffRows is the maximum number of rows in a printed table, so that the table fits on a screen.
	maxDiffRows = 20
	// maxRecordedCalls is the maximum number of different recorded calls in one request.
	maxRecordedCalls = 2000
	// diffTimeout is the timeout for a comparison. It is longer than the time limit in the policy service.
	diffTimeout = time.Minute
)

const (
	// exitFailed is the exit code of `policy diff` and `policy replay` if the comparison fails.
	exitFailed = 2
	// exitIncomplete is the exit code of `policy diff` and `policy replay` if not all calls were compared, and none of the
	// compared calls would become less restricted.
	exitIncomplete = 3
)

// incompleteError returns an error with the exit code [exitIncomplete].
func incompleteError(format string, args ...any) error {
	return exitError{fmt.Errorf(format, args...), exitIncomplete}
}

// comparisonError gives an error the exit code [exitFailed]. It does not change an error that already has an exit code.
// It also does not change errSilent, with which a command exits with code 1 if a change would make calls less
// restricted.
func comparisonError(err error) error {
	var known exitError
	if err == nil || errors.Is(err, errSilent) || errors.As(err, &known) {
		return err
	}
	return exitError{err, exitFailed}
}

type diffFlags struct {
	live    bool
	since   string
	catalog catalogDiffFlags
}

func (t *tool) policyDiff() *cobra.Command {
	var f diffFlags
	c := &cobra.Command{
		Use:   "diff ([OLD] NEW | --catalog | --definition TOOL | --override TOOL)",
		Short: "Show which calls get a different result after a change to the policy documents or the catalog",
		Long: `Compare two versions of all policy documents of a mesh, and show the calls that get another
result, first the calls that were refused and are allowed. OLD and NEW are files, folders, or
ids of stored revisions. Without OLD, NEW is compared with the active documents of the running
mesh. Two paths are compared without the network, unless --live or --since is set; --config then
gives the tools, servers and tokens.

The command compares the calls of each tool and caller that servers, tokens or documents name,
and of any other caller. Arguments are not known: the column IF shows the conditions of a
change. If a rule gets 'mode: observe', its calls are shown as 'deny -> allow (observed)'.
--catalog, --definition and --override compare the active documents with a changed catalog, and
change nothing.

The command exits with 1 if a refused call is allowed or can be approved, or if a call no longer
needs an approval. It exits with 2 if it fails, and with 3 if the comparison is incomplete: it
took too long, there are too many callers, tags or conditions, or a changed rule may allow calls
that were not compared.`,
		Example: "  " + t.self + " policy diff draft/ --since 24h\n" +
			"  " + t.self + " policy diff --override files/sync=read:low",
		Args: args(f.catalog.args),
		RunE: func(c *cobra.Command, given []string) error {
			return comparisonError(t.runDiff(c.Context(), given, &f))
		},
	}
	c.Flags().BoolVar(&f.live, "live", false, "let the running mesh compare the documents")
	c.Flags().StringVar(&f.since, "since", "", "also compare the calls in the journal since this time: 15m, 2h or 7d ago, or RFC 3339")
	_ = c.RegisterFlagCompletionFunc("since", cobra.NoFileCompletions)
	f.catalog.add(c)
	return c
}

func (t *tool) runDiff(ctx context.Context, given []string, flags *diffFlags) error {
	if flags.catalog.given() {
		return t.runCatalogDiff(ctx, &flags.catalog)
	}
	req := new(policyv1.DiffRevisionsRequest)
	var err error
	if req.Documents, req.NewRevision, err = documentsOrRevision(given[len(given)-1]); err != nil {
		return err
	}
	if len(given) == 2 {
		if req.OldDocuments, req.OldRevision, err = documentsOrRevision(given[0]); err != nil {
			return err
		}
	}
	var resp *policyv1.DiffRevisionsResponse
	if len(given) == 2 && !flags.live && flags.since == "" && req.GetOldRevision() == "" && req.GetNewRevision() == "" {
		resp, err = t.diffOffline(ctx, req)
	} else {
		resp, err = t.diffLive(ctx, req, flags.since)
	}
	if err != nil {
		return err
	}
	return t.printPolicyDiff(resp, flags.since != "")
}

// documentsOrRevision returns the documents at a path. If the path does not exist and the argument can be a revision,
// it returns the revision instead.
func documentsOrRevision(given string) (documents []*policyv1.Document, revision string, err error) {
	if _, err := os.Stat(given); errors.Is(err, fs.ErrNotExist) && revisionID.MatchString(given) {
		return nil, strings.ToLower(given), nil
	}
	documents, err = policy.ReadDocuments([]string{given})
	return documents, "", err
}

func (t *tool) diffOffline(ctx context.Context, req *policyv1.DiffRevisionsRequest) (*policyv1.DiffRevisionsResponse, error) {
	var f *config.File
	if t.config != "" {
		var err error
		if f, err = t.load(); err != nil {
			return nil, err
		}
	}
	return policy.Diff(ctx, f, app.Env, req.GetOldDocuments(), req.GetDocuments())
}

// diffLive lets the running mesh compare documents. If since is not empty, it also compares the calls that were
// recorded since that time.
func (t *tool) diffLive(ctx context.Context, req *policyv1.DiffRevisionsRequest, since string) (*policyv1.DiffRevisionsResponse, error) {
	if since != "" {
		filter := &gatewayv1.DecisionFilter{WithoutProtocol: true, Kinds: []gatewayv1.RecordKind{gatewayv1.RecordKind_RECORD_KIND_INTENT, gatewayv1.RecordKind_RECORD_KIND_REFUSAL}}
		if err := setTimes(filter, since, "", time.Now()); err != nil {
			return nil, err
		}
		client, done, err := t.gatewayClient()
		if err != nil {
			return nil, err
		}
		defer done()
		if req.Recorded, err = t.readRecordedCalls(ctx, client, filter); err != nil {
			return nil, err
		}
	}
	f, err := t.load()
	if err != nil {
		return nil, err
	}
	conn, err := t.dial(f, authv1.Role_ROLE_POLICY)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // only the answer matters
	return t.diffRevisions(ctx, policyv1.NewPolicyServiceClient(conn), req)
}

func (t *tool) diffRevisions(ctx context.Context, client policyv1.PolicyServiceClient, req *policyv1.DiffRevisionsRequest) (*policyv1.DiffRevisionsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, diffTimeout)
	defer cancel()
	stream, err := client.DiffRevisions(ctx, req)
	if err != nil {
		return nil, t.explainError(err)
	}
	diff, err := readDiff(stream)
	if err != nil {
		return nil, t.explainError(err)
	}
	return diff, nil
}

// readDiff reads all calls whose result changes in a comparison. It returns an error if the totals at the end are
// missing.
func readDiff[R interface {
	GetFlips() []*policyv1.Flip
	GetTotals() *policyv1.DiffTotals
}](stream interface{ Recv() (R, error) }) (*policyv1.DiffRevisionsResponse, error) {
	diff := new(policyv1.DiffRevisionsResponse)
	for {
		resp, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && diff.GetTotals() != nil:
			policy.SortFlips(diff.GetFlips())
			return diff, nil
		case errors.Is(err, io.EOF):
			return nil, errors.New("the policy service ended the comparison without its totals: try again")
		case err != nil:
			return nil, err
		}
		diff.Flips, diff.Totals = append(diff.Flips, resp.GetFlips()...), resp.GetTotals()
	}
}

// printPolicyDiff prints a comparison. It returns an error if the documents can't be loaded, if not all calls were
// compared, or if a change makes or may make calls less restricted (FLIP_KIND_OPENS). For example, refused calls would
// wait for approval.
func (t *tool) printPolicyDiff(diff *policyv1.DiffRevisionsResponse, recorded bool) error {
	totals := diff.GetTotals()
	if t.json() {
		if err := t.printMessage(diff); err != nil {
			return err
		}
	} else if len(totals.GetFindings()) == 0 {
		if err := t.printFlips(diff, recorded); err != nil {
			return err
		}
		t.printf("%s", howDocumentsCompared(totals, recorded))
		if totals.GetServers() == 0 {
			t.printf("No list of a server's tools was found, so the calls are only those that the documents mention. To compare all tools, use --config FILE after the mesh has listed them, or --live.")
		}
	}
	switch {
	case len(totals.GetFindings()) > 0:
		return notLoading(totals.GetFindings())
	case totals.GetOpened() > 0:
		return errSilent
	case totals.GetEndedEarly():
		return incompleteError("the comparison is incomplete: there are too many callers or tags, or it took too long; compare the documents of fewer servers")
	case totals.GetUncertain() > 0:
		return incompleteError("the comparison is incomplete: %s depend on too many conditions that differ; compare smaller changes", countOfCalls(totals.GetUncertain()))
	case len(totals.GetMayOpen()) > 0:
		return mayOpenError(totals.GetMayOpen())
	}
	return nil
}

// howDocumentsCompared says what was compared symbolically, with generated calls and with recorded calls.
func howDocumentsCompared(totals *policyv1.DiffTotals, recorded bool) string {
	text := fmt.Sprintf("Compared symbolically: all arguments. Compared by generated calls: callers without a configured token, and names for which there are only patterns (%s).",
		countOfCalls(totals.GetGenerated()))
	if recorded {
		text += " Compared by recorded calls: those of the journal."
	}
	return text
}

func (t *tool) printMessage(m proto.Message) error {
	raw, err := protojson.Marshal(m)
	if err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return t.printJSON(jsontext.Value(raw))
}

// mayOpenError returns the error for changed rules that may make calls less restricted, although no compared call
// became less restricted. It names the first few of these rules.
func mayOpenError(rules []*policyv1.RuleRef) error {
	return incompleteError("the comparison is incomplete: it found no call that is opened, but the change of %s may open calls that were not compared, for example those of callers that many rules name; "+
		"check such a call with `sluice policy explain`, or add it to the `tests` of a document", strings.Join(ruleNames(rules), ", "))
}

// ruleNames returns the names of the first rules in a list, and the number of the remaining rules.
func ruleNames(rules []*policyv1.RuleRef) (names []string) {
	const shown = 5
	for _, r := range rules[:min(len(rules), shown)] {
		names = append(names, r.GetDocument()+"/"+r.GetRule())
	}
	if further := len(rules) - len(names); further > 0 {
		names = append(names, fmt.Sprintf("%d more", further))
	}
	return names
}

// notLoading returns an error with the findings that prevent documents from being loaded.
func notLoading(found []*policyv1.Finding) error {
	lines := make([]string, len(found))
	for i, f := range found {
		lines[i] = findingPosition(f) + findingText(f)
	}
	return errors.New("the documents do not load:\n" + strings.Join(lines, "\n"))
}
