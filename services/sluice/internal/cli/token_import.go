package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

func (t *tool) importTokens() *cobra.Command {
	var expires string
	c := &cobra.Command{
		Use:   "import [ID...]",
		Short: "Store tokens of agents that the configuration contains",
		Long: `Store tokens of agents from the configuration (auth.tokens) in the mesh, with the same names and
texts, so that they expire and can be rotated and revoked. Without an ID, store all of them.
Then remove them from the configuration: until then, the stored tokens are not used. Agents with
stored tokens no longer use the connections of the owner to servers: for this, the owner creates a
token with ` + "`" + t.self + " token create --use-my-connections`" + `. Tokens of people can't be stored: people use
` + "`" + t.self + " login`" + `.`,
		Args: args(cobra.ArbitraryArgs),
		RunE: func(c *cobra.Command, given []string) error {
			at, err := parseExpiry(expires, time.Now())
			if err != nil {
				return usageError{fmt.Errorf("--expires: %w", err)}
			}
			return t.withIdentity(c.Context(), func(ctx context.Context, client identityv1.IdentityServiceClient) error {
				resp, err := client.ImportTokens(ctx, &identityv1.ImportTokensRequest{Names: given, Expires: timestamppb.New(at)})
				if err != nil {
					return t.explainError(err)
				}
				return t.printImported(resp.GetTokens())
			})
		},
	}
	c.Flags().StringVar(&expires, "expires", defaultTokenLife, expiresHelp)
	return c
}

func (t *tool) printImported(tokens []*identityv1.Token) error {
	records, names := make([]tokenRecord, len(tokens)), make([]string, len(tokens))
	for i, one := range tokens {
		records[i], names[i] = newTokenRecord(one), one.GetName()
	}
	switch {
	case t.json():
		return t.printJSON(records)
	case len(tokens) == 0:
		t.printf("nothing to import: all tokens of agents in the configuration are already stored")
		return nil
	}
	t.printf("imported: %s, valid until %s", strings.Join(names, ", "), records[0].Expires.Format(time.DateTime))
	t.printf("now remove these tokens from the configuration (auth.tokens), which needs no restart")
	return nil
}
