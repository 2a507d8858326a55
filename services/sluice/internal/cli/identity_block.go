package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// blockTarget contains the flags that identify a caller together with an argument.
type blockTarget struct{ tenant, client string }

func (b *blockTarget) add(c *cobra.Command) {
	c.Flags().StringVar(&b.tenant, "tenant", "default", "the `TENANT` of the caller")
	c.Flags().StringVar(&b.client, "client", "", "the OAuth `CLIENT` of JWTs, instead of a subject")
}

// caller returns the caller that the arguments and flags identify.
func (b *blockTarget) caller(given []string) (*identityv1.BlockedCaller, error) {
	out := &identityv1.BlockedCaller{Tenant: b.tenant, Client: b.client}
	if len(given) > 0 {
		out.Subject = given[0]
	}
	if (out.GetSubject() == "") == (out.GetClient() == "") {
		return nil, usageError{errors.New("name either a SUBJECT or an OAuth client with --client")}
	}
	return out, nil
}

// blockRecord is a block in the JSON output.
type blockRecord struct {
	Tenant    string    `json:"tenant"`
	Subject   string    `json:"subject,omitzero"`
	Client    string    `json:"client,omitzero"`
	Created   time.Time `json:"created,omitzero"`
	CreatedBy string    `json:"createdBy,omitzero"`
	Reason    string    `json:"reason,omitzero"`
}

func newBlockRecord(b *identityv1.Block) blockRecord {
	caller := b.GetCaller()
	return blockRecord{
		Tenant: caller.GetTenant(), Subject: caller.GetSubject(), Client: caller.GetClient(), Created: b.GetCreated().AsTime().Local(), CreatedBy: b.GetCreatedBy(), Reason: b.GetReason(),
	}
}

// name returns the subject or the client.
func (b blockRecord) name() string {
	if b.Client != "" {
		return "client " + b.Client
	}
	return b.Subject
}

func (t *tool) identityBlock() *cobra.Command {
	target, reason := new(blockTarget), ""
	c := &cobra.Command{
		Use:   "block (SUBJECT | --client CLIENT)",
		Short: "Block a person, an agent or an OAuth client, immediately",
		Long: `Block a caller, for example a person who leaves. Once the command returns, no service accepts
the tokens, sessions and JWTs of this person, or of agents that work for this person, even if
they are created later. Sandboxed agents that this person owns can no longer call tools. Calls
that were already sent end normally.`,
		Example: "  " + t.self + " identity block corp/ana --reason 'has left the company'",
		Args:    args(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, given []string) error {
			caller, err := target.caller(given)
			if err != nil {
				return err
			}
			return t.withIdentity(c.Context(), func(ctx context.Context, client identityv1.IdentityServiceClient) error {
				resp, err := client.BlockCaller(ctx, &identityv1.BlockCallerRequest{Caller: caller, Reason: reason})
				if err != nil {
					return t.explainError(err)
				}
				return t.printBlocked(resp)
			})
		},
	}
	target.add(c)
	c.Flags().StringVar(&reason, "reason", "", "a `TEXT` for other operators")
	return c
}

func (t *tool) printBlocked(resp *identityv1.BlockCallerResponse) error {
	record := newBlockRecord(resp.GetBlock())
	if t.json() {
		out := struct {
			blockRecord

			UnconfirmedReplicas int32 `json:"unconfirmedReplicas"`
		}{record, resp.GetUnconfirmedReplicas()}
		if err := t.printJSON(out); err != nil {
			return err
		}
	} else {
		t.printf("blocked: %s in the tenant %s", record.name(), record.Tenant)
	}
	if n := resp.GetUnconfirmedReplicas(); n > 0 {
		return fmt.Errorf("the caller is blocked, but this is not confirmed by %s: a replica that runs without a connection to the database accepts the caller for at most stores.identity_max_age", identityReplicas(n))
	}
	return nil
}

func (t *tool) identityUnblock() *cobra.Command {
	target := new(blockTarget)
	c := &cobra.Command{
		Use:   "unblock (SUBJECT | --client CLIENT)",
		Short: "End a block",
		Long: `End a block. The mesh accepts the tokens, sessions and JWTs of the caller again, unless they
have ended.`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, given []string) error {
			caller, err := target.caller(given)
			if err != nil {
				return err
			}
			return t.withIdentity(c.Context(), func(ctx context.Context, client identityv1.IdentityServiceClient) error {
				if _, err := client.UnblockCaller(ctx, &identityv1.UnblockCallerRequest{Caller: caller}); err != nil {
					return t.explainError(err)
				}
				record := blockRecord{Tenant: caller.GetTenant(), Subject: caller.GetSubject(), Client: caller.GetClient()}
				if t.json() {
					return t.printJSON(record)
				}
				t.printf("unblocked: %s in the tenant %s", record.name(), record.Tenant)
				return nil
			})
		},
	}
	target.add(c)
	return c
}

func (t *tool) identityBlocks() *cobra.Command {
	return &cobra.Command{
		Use:   "blocks",
		Short: "List the callers that are blocked",
		Args:  args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return t.withIdentity(c.Context(), func(ctx context.Context, client identityv1.IdentityServiceClient) error {
				resp, err := client.ListBlocks(ctx, new(identityv1.ListBlocksRequest))
				if err != nil {
					return t.explainError(err)
				}
				return t.printBlocks(resp.GetBlocks())
			})
		},
	}
}

func (t *tool) printBlocks(all []*identityv1.Block) error {
	records, rows := make([]blockRecord, len(all)), make([][]string, len(all))
	for i, one := range all {
		r := newBlockRecord(one)
		records[i], rows[i] = r, []string{r.name(), r.Tenant, r.Created.Format(time.DateTime), orDash(r.CreatedBy), orDash(r.Reason)}
	}
	switch {
	case t.json():
		return t.printJSON(records)
	case len(all) == 0:
		t.printf("no caller is blocked")
		return nil
	}
	return t.table([]string{"CALLER", "TENANT", "BLOCKED", "BY", "REASON"}, rows)
}
