package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
)

func (t *tool) agentsMigrate() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "migrate [ID...]", Short: "Run agents with the current module of their guest; files, todos and conversations stay",
		ValidArgsFunction: t.completeAgent,
		RunE: func(c *cobra.Command, ids []string) error {
			if all != (len(ids) == 0) {
				return usageError{errors.New("give either the ids of agents or --all")}
			}
			return t.withAgents(c.Context(), proofTime, func(ctx context.Context, client wasmagentv1.AgentServiceClient) error {
				if all {
					list, err := allAgents(ctx, client, false)
					if err != nil {
						return t.explainError(err)
					}
					for _, a := range list {
						ids = append(ids, a.GetId())
					}
				}
				return t.migrate(ctx, client, ids)
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "migrate all agents that have not ended")
	return c
}

// migrate migrates agents. It continues with the other agents if one migration fails.
func (t *tool) migrate(ctx context.Context, client wasmagentv1.AgentServiceClient, ids []string) error {
	failed := 0
	for _, id := range ids {
		resp, err := client.MigrateAgent(ctx, &wasmagentv1.MigrateAgentRequest{AgentId: id})
		if err != nil {
			failed++
			if err := oneLine(t.errOut, "%s: %v", id, t.explainError(err)); err != nil {
				return err
			}
			continue
		}
		now := resp.GetAgent()
		switch {
		case t.json():
			err = t.printLine(struct {
				ID   string `json:"id"`
				From string `json:"from,omitempty"`
				To   string `json:"to"`
			}{now.GetId(), resp.GetFromDigest(), now.GetModuleDigest()})
		case resp.GetFromDigest() == "":
			err = oneLine(t.out, "%s already runs the current module", now.GetId())
		default:
			err = oneLine(t.out, "%s runs module %.12s instead of %.12s", now.GetId(), now.GetModuleDigest(), resp.GetFromDigest())
		}
		if err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d agents were not migrated; the lines above say why", failed, len(ids))
	}
	return nil
}
