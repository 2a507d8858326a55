package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// maxPage is the maximum page size that sluice.gateway.v1 and sluice.wasmagent.v1 permit.
const maxPage = 1000

func (t *tool) decisions() *cobra.Command {
	return group("decisions", "Show decisions and their outcomes", t.decisionsTail(), t.decisionsShow())
}

func (t *tool) decisionsTail() *cobra.Command {
	var n int32
	var follow bool
	var since, until string
	var protocol bool
	filter := new(gatewayv1.DecisionFilter)
	c := &cobra.Command{
		Use: "tail", Aliases: []string{"list"}, Short: "Print the newest records", Args: args(cobra.NoArgs),
		Long: `Print the newest records, the oldest of them first. Ctrl-C ends a long search. Without
--protocol, protocol messages (initialize, ping, lists and notifications) are omitted if they
were allowed or no rule allows them.`,
		RunE: func(c *cobra.Command, _ []string) error {
			filter.WithoutProtocol = !protocol
			if err := setTimes(filter, since, until, time.Now()); err != nil {
				return usageError{err}
			}
			client, done, err := t.gatewayClient()
			if err != nil {
				return err
			}
			defer done()
			if follow {
				return t.followDecisions(c.Context(), client, &gatewayv1.WatchDecisionsRequest{Last: n, Filter: filter})
			}
			records, err := t.newestDecisions(c.Context(), client, filter, n)
			if err != nil {
				return t.explainError(err)
			}
			return t.printRecords(records)
		},
	}
	c.Flags().Int32VarP(&n, "lines", "n", 100, "the maximum number of records")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new records")
	c.Flags().StringVar(&filter.Server, "server", "", "only this server")
	c.Flags().StringVar(&filter.Tool, "tool", "", "only this tool")
	c.Flags().StringVar(&filter.Subject, "subject", "", "only this subject")
	c.Flags().StringVar(&since, "since", "", "only records since this time: 15m, 2h or 7d ago, or RFC 3339")
	c.Flags().StringVar(&until, "until", "", "only records before this time, in the same form")
	c.Flags().BoolVar(&protocol, "protocol", false, "also print all protocol messages")
	c.MarkFlagsMutuallyExclusive("follow", "until")
	_ = c.RegisterFlagCompletionFunc("server", t.completeServer)
	return c
}

func (t *tool) decisionsShow() *cobra.Command {
	var all, withArguments bool
	c := &cobra.Command{
		Use: "show ID", Short: "Print the decision on a call and its outcome", Args: args(cobra.ExactArgs(1)),
		Long: `Print the decision on a call and its outcome. ID is the id of the decision; for one of the
newest decisions, its first 8 characters are enough.`,
		RunE: func(c *cobra.Command, given []string) error {
			client, done, err := t.gatewayClient()
			if err != nil {
				return err
			}
			defer done()
			ctx, cancel := requestContext(c.Context())
			defer cancel()
			resp, err := t.getDecision(ctx, client, given[0])
			if err != nil {
				return err
			}
			switch {
			case withArguments:
				return t.printArguments(ctx, client, resp.GetRecords())
			case t.json():
				return t.printRecords(resp.GetRecords())
			case all:
				return t.printDetails(resp.GetRecords())
			default:
				return t.printSummary(resp.GetRecords())
			}
		},
	}
	c.Flags().BoolVar(&all, "all", false, "print all fields of all records")
	c.Flags().BoolVar(&withArguments, "arguments", false, "print the recorded arguments as JSON, with secrets replaced; only for operators")
	c.MarkFlagsMutuallyExclusive("all", "arguments")
	return c
}

func (t *tool) gatewayClient() (gatewayv1.GatewayServiceClient, func(), error) {
	f, err := t.load()
	if err != nil {
		return nil, nil, err
	}
	conn, err := t.dial(f, authv1.Role_ROLE_GATEWAY)
	if err != nil {
		return nil, nil, err
	}
	return gatewayv1.NewGatewayServiceClient(conn), func() { _ = conn.Close() }, nil
}

func (t *tool) followDecisions(ctx context.Context, client gatewayv1.GatewayServiceClient, req *gatewayv1.WatchDecisionsRequest) error {
	stream, err := client.WatchDecisions(ctx, req)
	if err != nil {
		return t.explainError(err)
	}
	for {
		rec, err := t.nextRecord(ctx, stream)
		if rec == nil || err != nil {
			return err
		}
		if t.json() {
			err = t.printLine(jsonRecord{rec})
		} else {
			_, err = fmt.Fprintln(t.out, safetext.Line(strings.Join(recordRow(rec), "  ")))
		}
		if err != nil {
			return err
		}
	}
}

// nextRecord waits for a record. It returns nil if the stream has ended or ctx is done.
func (t *tool) nextRecord(ctx context.Context, stream grpc.ServerStreamingClient[gatewayv1.WatchDecisionsResponse]) (*gatewayv1.Record, error) {
	for {
		resp, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) || ctx.Err() != nil:
			return nil, nil //nolint:nilerr // the end of the command is not an error
		case err != nil:
			return nil, t.explainError(err)
		case resp.GetRecord() != nil:
			return resp.GetRecord(), nil
		}
	}
}

// newestDecisions returns the newest n records, oldest first. If a search takes long, the gateway may return pages that
// are not full. In that case, newestDecisions reports progress on standard error.
func (t *tool) newestDecisions(ctx context.Context, client gatewayv1.GatewayServiceClient, filter *gatewayv1.DecisionFilter, n int32) ([]*gatewayv1.Record, error) {
	var out []*gatewayv1.Record
	req := &gatewayv1.ListDecisionsRequest{Filter: filter}
	for more := true; more; more = req.GetPageToken() != "" && len(out) < int(n) {
		req.PageSize = min(n-int32(len(out)), maxPage)
		resp, err := listDecisionsPage(ctx, client, req)
		if err != nil {
			return nil, err
		}
		out, req.PageToken = append(out, resp.GetRecords()...), resp.GetNextPageToken()
		if back := resp.GetSearched(); back != nil && req.GetPageToken() != "" && len(resp.GetRecords()) < int(req.GetPageSize()) {
			fmt.Fprintf(t.errOut, "searched back to %s, found %d records so far\n", back.AsTime().Local().Format(time.DateTime), len(out))
		}
	}
	slices.Reverse(out)
	return out, nil
}

func listDecisionsPage(ctx context.Context, client gatewayv1.GatewayServiceClient, req *gatewayv1.ListDecisionsRequest) (*gatewayv1.ListDecisionsResponse, error) {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	return client.ListDecisions(ctx, req)
}

func (t *tool) printRecords(records []*gatewayv1.Record) error {
	if t.json() {
		out := make([]jsonRecord, len(records))
		for i, r := range records {
			out[i] = jsonRecord{r}
		}
		return t.printJSON(out)
	}
	rows := make([][]string, len(records))
	for i, r := range records {
		rows[i] = recordRow(r)
	}
	return t.table([]string{"TIME", "KIND", "WHO", "WHAT", "RESULT", "RULE", "DECISION"}, rows)
}

func recordRow(r *gatewayv1.Record) []string {
	what := callTarget(r.GetServer(), r.GetMethod(), r.GetTool())
	if r.GetFromServer() {
		what += " (asked by the server)"
	}
	result := resultName(r)
	if would := observedName(r); would != "" {
		result += " (" + would + ")"
	}
	return []string{
		r.GetTime().AsTime().Local().Format(time.DateTime),
		orDash(enum.NameOrEmpty(r.GetKind())),
		orDash(r.GetPrincipal().GetSubject() + r.GetPeer()),
		orDash(what),
		result,
		ruleName(r.GetRule()),
		orDash(r.GetDecisionId()),
	}
}

// callTarget describes the target of a call. This is SERVER/TOOL, or the server, the method and the item to which the
// method applies.
func callTarget(server, method, tool string) string {
	if method != "" && (tool == "" || method != "tools/call") {
		return strings.TrimSpace(server + " " + method + " " + tool)
	}
	return strings.Trim(server+"/"+tool, "/")
}

// observedName describes what would have happened to a call without observe mode, for example "would_deny
// denied_by_rule draft/no". It returns "" if there would have been no difference.
func observedName(r *gatewayv1.Record) string {
	would := r.GetObserved()
	name := enum.NameOrEmpty(would.GetEffect()) + withPrefix(" ", enum.NameOrEmpty(would.GetCode()))
	if would.GetRule() != nil {
		name += " " + ruleName(would.GetRule())
	}
	return name
}

func resultName(r *gatewayv1.Record) string {
	if c := enum.NameOrEmpty(r.GetCode()); c != "" {
		if r.GetCount() > 1 {
			return fmt.Sprintf("%s ×%d", c, r.GetCount())
		}
		return c
	}
	if r.GetResult() != gatewayv1.ResultClass_RESULT_CLASS_UNSPECIFIED {
		return enum.NameOrEmpty(r.GetResult())
	}
	return effectName(r.GetEffect())
}
