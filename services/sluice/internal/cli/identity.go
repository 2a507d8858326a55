package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/issuer"
)

func (t *tool) identity() *cobra.Command {
	return group("identity", "Show how JWTs of issuers identify agents, and block callers", t.identityExplain(), t.identityIssuers(),
		t.identityBlock(), t.identityUnblock(), t.identityBlocks())
}

// issuerRecord is an issuer in the JSON output.
type issuerRecord struct {
	Name    string    `json:"name"`
	Issuer  string    `json:"issuer"`
	Keys    int32     `json:"keys"`
	Fetched time.Time `json:"fetched,omitzero"`
	Problem string    `json:"problem,omitzero"`
}

func (t *tool) identityIssuers() *cobra.Command {
	return &cobra.Command{
		Use:   "issuers",
		Short: "List the issuers whose JWTs are accepted, and when their keys were fetched",
		Args:  args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return t.withIdentity(c.Context(), func(ctx context.Context, client identityv1.IdentityServiceClient) error {
				resp, err := client.ListIssuers(ctx, new(identityv1.ListIssuersRequest))
				if err != nil {
					return err
				}
				return t.printIssuers(resp.GetIssuers())
			})
		},
	}
}

func (t *tool) printIssuers(issuers []*identityv1.IssuerStatus) error {
	records := make([]issuerRecord, len(issuers))
	rows := make([][]string, len(issuers))
	for i, one := range issuers {
		r := issuerRecord{Name: one.GetName(), Issuer: one.GetIssuer(), Keys: one.GetKeys(), Problem: one.GetProblem()}
		fetched := "never"
		if one.GetFetched() != nil {
			r.Fetched = one.GetFetched().AsTime().Local()
			fetched = r.Fetched.Format(time.DateTime)
		}
		records[i], rows[i] = r, []string{r.Name, r.Issuer, strconv.Itoa(int(r.Keys)), fetched, r.Problem}
	}
	if t.json() {
		return t.printJSON(records)
	}
	if len(issuers) == 0 {
		t.printf("no issuers are configured: list them under auth.issuers\n")
		return nil
	}
	return t.table([]string{"NAME", "ISSUER", "KEYS", "FETCHED", "PROBLEM"}, rows)
}

// explainedStep is a step of the verification in the JSON output.
type explainedStep struct {
	Name    string `json:"name"`
	Text    string `json:"text"`
	Refused bool   `json:"refused,omitzero"`
}

func (t *tool) identityExplain() *cobra.Command {
	return &cobra.Command{
		Use:   "explain (TOKEN | -)",
		Short: "Verify a JWT step by step, and show the agent that it identifies",
		Long: `Verify a JWT as the gateway does, and show each step. If the token is refused, the last step
says why, and the command exits with 1. Nothing is recorded. With -, the token is read from
standard input, so that it is not in the shell's history.`,
		Example: "  " + t.self + " identity explain - < token.txt",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, given []string) error {
			token := given[0]
			if token == "-" {
				raw, err := io.ReadAll(io.LimitReader(c.InOrStdin(), 2*issuer.MaxToken))
				if err != nil {
					return fmt.Errorf("read the token: %w", err)
				}
				token = string(raw)
			}
			return t.withIdentity(c.Context(), func(ctx context.Context, client identityv1.IdentityServiceClient) error {
				resp, err := client.ExplainJWT(ctx, &identityv1.ExplainJWTRequest{Token: strings.TrimSpace(token)})
				if err != nil {
					return err
				}
				return t.printExplained(resp)
			})
		},
	}
}

func (t *tool) printExplained(resp *identityv1.ExplainJWTResponse) error {
	steps := make([]explainedStep, len(resp.GetSteps()))
	rows := make([][]string, len(steps))
	for i, step := range resp.GetSteps() {
		steps[i] = explainedStep{Name: step.GetName(), Text: step.GetText(), Refused: step.GetRefused()}
		mark := "ok"
		if step.GetRefused() {
			mark = "refused"
		}
		rows[i] = []string{step.GetName(), mark, step.GetText()}
	}
	show := func() error { return t.table([]string{"STEP", "RESULT", "FOUND"}, rows) }
	if t.json() {
		show = func() error { return t.printJSON(steps) }
	}
	err := show()
	if err == nil && resp.GetPrincipal() == nil {
		return errSilent
	}
	return err
}
