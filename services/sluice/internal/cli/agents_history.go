package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

const (
	// proofTime is the timeout for requests that verify, export, import or migrate a whole agent.
	proofTime = 10 * time.Minute
	// followTime is how long one request waits for more events.
	followTime = 20 * time.Second
	// maxArchive is the maximum size of an archive, and maxPart is the maximum size of one of its parts. Both are in
	// bytes.
	maxArchive = 64 << 20
	maxPart    = 1 << 20
)

func (t *tool) agentsEvents() *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use: "events ID", Short: "Print an agent's journal: its prompts, calls and results", Args: args(cobra.ExactArgs(1)), ValidArgsFunction: t.completeAgent,
		RunE: func(c *cobra.Command, given []string) error {
			return t.withAgents(c.Context(), promptTimeout, func(ctx context.Context, client wasmagentv1.AgentServiceClient) error {
				for token := ""; ; {
					req := &wasmagentv1.ListEventsRequest{AgentId: given[0], PageSize: maxPage, PageToken: token}
					if follow {
						req.Wait = durationpb.New(followTime)
					}
					resp, err := client.ListEvents(ctx, req)
					if err != nil {
						return t.explainError(err)
					}
					for _, e := range resp.GetEvents() {
						if err := t.printEvent(e); err != nil {
							return err
						}
					}
					if token = resp.GetNextPageToken(); !resp.GetMore() && !follow {
						return nil
					}
				}
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new records")
	return c
}

type eventRow struct {
	Epoch      int32     `json:"epoch"`
	Sequence   int64     `json:"sequence"`
	Time       time.Time `json:"time"`
	Kind       string    `json:"kind"`
	Effect     string    `json:"effect,omitempty"`
	Envelope   string    `json:"envelope,omitempty"`
	Digest     string    `json:"envelopeDigest,omitempty"`
	About      int64     `json:"effectSequence,omitempty"`
	DecisionID string    `json:"decisionId,omitempty"`
	Code       string    `json:"code,omitempty"`
	ApprovalID string    `json:"approvalId,omitempty"`
	Fuel       int64     `json:"fuel,omitempty"`
	State      string    `json:"state,omitempty"`
	Message    string    `json:"message,omitempty"`
	Actor      string    `json:"actor,omitempty"`
	Hash       string    `json:"hash"`
}

func (t *tool) printEvent(e *wasmagentv1.Event) error {
	row := eventRow{
		e.GetEpoch(), e.GetSequence(), e.GetTime().AsTime(), enum.Name(e.GetKind()), enum.NameOrEmpty(e.GetEffect()), e.GetEnvelopeJson(), e.GetEnvelopeDigest(), e.GetEffectSequence(),
		e.GetDecisionId(), enum.NameOrEmpty(e.GetCode()), e.GetApprovalId(), e.GetFuel(), enum.NameOrEmpty(e.GetState()), e.GetMessage(), e.GetActor(), e.GetHash(),
	}
	if t.json() {
		return t.printLine(row)
	}
	words := []string{row.Kind, row.Effect, row.Code, row.Message}
	if row.Actor != "" {
		words = append(words, "by "+row.Actor)
	}
	if row.ApprovalID != "" {
		words = append(words, "approval "+row.ApprovalID)
	}
	words = append(words, row.Envelope)
	var parts []string
	for _, word := range words {
		if word != "" {
			parts = append(parts, safetext.Line(word))
		}
	}
	return oneLine(t.out, "%d/%-4d %s  %s", row.Epoch, row.Sequence, row.Time.Local().Format(time.TimeOnly), strings.Join(parts, "  "))
}

func (t *tool) agentsVerify() *cobra.Command {
	return &cobra.Command{
		Use: "verify ID", Short: "Verify an agent's journal, and that its module does what the journal says; exits with 1 if not", Args: args(cobra.ExactArgs(1)), ValidArgsFunction: t.completeAgent,
		RunE: func(c *cobra.Command, given []string) error {
			return t.withAgents(c.Context(), proofTime, func(ctx context.Context, client wasmagentv1.AgentServiceClient) error {
				resp, err := client.VerifyAgent(ctx, &wasmagentv1.VerifyAgentRequest{AgentId: given[0]})
				if err != nil {
					return t.explainError(err)
				}
				if t.json() {
					err = t.printJSON(struct {
						Verification string `json:"verification"`
						Message      string `json:"message"`
						Events       int64  `json:"events"`
						Steps        int64  `json:"steps"`
						Effects      int64  `json:"effects"`
						Recorded     int64  `json:"fuelRecorded"`
						Replayed     int64  `json:"fuelReplayed"`
						Head         string `json:"journalHead"`
						// Part and Name identify stored content that differs from the journal.
						Part       string   `json:"part,omitempty"`
						Name       string   `json:"name,omitempty"`
						NotCovered []string `json:"notCovered,omitempty"`
					}{
						enum.Name(resp.GetVerification()), resp.GetMessage(), resp.GetEvents(), resp.GetSteps(), resp.GetEffects(), resp.GetFuelRecorded(), resp.GetFuelReplayed(), resp.GetJournalHead(),
						resp.GetStoredDifference().GetPart(), resp.GetStoredDifference().GetName(), resp.GetNotCovered(),
					})
				} else {
					t.printf("%s: %s", enum.Name(resp.GetVerification()), resp.GetMessage())
					t.printf("%d events, %d steps run again, %d effects and %d of %d instructions the same; head %s", resp.GetEvents(), resp.GetSteps(), resp.GetEffects(), resp.GetFuelReplayed(), resp.GetFuelRecorded(), resp.GetJournalHead())
				}
				if err == nil && resp.GetVerification() != wasmagentv1.Verification_VERIFICATION_MATCHES {
					err = errors.New("the agent could not be verified; the output says why")
				}
				return err
			})
		},
	}
}

func (t *tool) agentsExport() *cobra.Command {
	var out string
	var notCovered bool
	c := &cobra.Command{
		Use: "export ID", Short: "Write an agent's whole state to a signed archive, and print the key that signed it", Args: args(cobra.ExactArgs(1)), ValidArgsFunction: t.completeAgent,
		RunE: func(c *cobra.Command, given []string) error {
			if out == "" {
				out = given[0] + ".tar"
			}
			return t.withAgents(c.Context(), proofTime, func(ctx context.Context, client wasmagentv1.AgentServiceClient) error {
				text, last, err := fetchArchive(ctx, client, given[0], notCovered)
				if err != nil {
					return t.explainError(err)
				}
				if err := os.WriteFile(out, text, 0o600); err != nil {
					return fmt.Errorf("write the archive: %w", err)
				}
				if t.json() {
					return t.printJSON(struct {
						File   string `json:"file"`
						SHA256 string `json:"sha256"`
						Bytes  int    `json:"bytes"`
						Key    string `json:"key"`
					}{out, last.GetDigest(), len(text), hex.EncodeToString(last.GetPublicKeyBase64())})
				}
				t.printf("%s  %d bytes, SHA-256 %s", out, len(text), last.GetDigest())
				t.printf("signed by %s: to import the archive elsewhere, add this key to agents.accept_keys there", hex.EncodeToString(last.GetPublicKeyBase64()))
				return nil
			})
		},
	}
	c.Flags().StringVar(&out, "out", "", "the file to write (default ID.tar)")
	c.Flags().BoolVar(&notCovered, "not-covered", false, "export the agent of an older version, whose journal does not cover its whole state")
	return c
}

// fetchArchive fetches an archive in parts. It returns the archive and the last part.
func fetchArchive(ctx context.Context, client wasmagentv1.AgentServiceClient, id string, notCovered bool) (text []byte, last *wasmagentv1.ArchivePart, err error) {
	full := wasmagentv1.ExportDepth_EXPORT_DEPTH_FULL
	for {
		req := &wasmagentv1.ExportAgentRequest{AgentId: id, Depth: &full, Offset: last.GetNextOffset(), AcceptNotCovered: &notCovered}
		if last != nil {
			req.ArchiveDigest = new(last.GetDigest())
		}
		resp, err := client.ExportAgent(ctx, req)
		if err != nil {
			return nil, nil, err
		}
		last = resp.GetArchive()
		if text = append(text, last.GetDataBase64()...); last.GetNextOffset() == 0 {
			break
		}
		if int(last.GetNextOffset()) != len(text) || len(last.GetDataBase64()) == 0 || len(text) > maxArchive {
			return nil, nil, fmt.Errorf("the archive %s changed during the transfer: try again", safetext.Quote(last.GetDigest()))
		}
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != last.GetDigest() {
		return nil, nil, fmt.Errorf("the archive does not have its digest %s: try again", safetext.Quote(last.GetDigest()))
	}
	return text, last, nil
}

func (t *tool) agentsImport() *cobra.Command {
	return &cobra.Command{
		Use: "import FILE", Short: "Create an agent from an archive; the agent is stopped until it is resumed", Args: args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, given []string) error {
			f, err := os.Open(given[0])
			if err != nil {
				return usageError{err}
			}
			defer f.Close() //nolint:errcheck // the file was only read
			text, err := io.ReadAll(io.LimitReader(f, maxArchive+1))
			switch {
			case err != nil:
				return fmt.Errorf("read %s: %w", given[0], err)
			case len(text) == 0 || len(text) > maxArchive:
				return usageError{fmt.Errorf("%s is not an archive: an archive has 1 byte to %d MiB", given[0], maxArchive>>20)}
			}
			return t.withAgents(c.Context(), proofTime, func(ctx context.Context, client wasmagentv1.AgentServiceClient) error {
				made, err := sendArchive(ctx, client, text)
				if err != nil {
					return t.explainError(err)
				}
				if t.json() {
					return t.printJSON(newAgentRow(made.GetAgent()))
				}
				t.printf("%s", made.GetAgent().GetId())
				return oneLine(t.errOut, "the exported agent was %s; the new agent is stopped: %s agents resume %s", made.GetExportedId(), t.self, made.GetAgent().GetId())
			})
		},
	}
}

func sendArchive(ctx context.Context, client wasmagentv1.AgentServiceClient, text []byte) (*wasmagentv1.ImportAgentResponse, error) {
	sum := sha256.Sum256(text)
	for offset := 0; ; {
		resp, err := client.ImportAgent(ctx, &wasmagentv1.ImportAgentRequest{
			ArchiveDigest: hex.EncodeToString(sum[:]), SizeBytes: int32(len(text)), Offset: int32(offset), DataBase64: text[offset:min(len(text), offset+maxPart)],
		})
		if err != nil || resp.GetAgent() != nil {
			return resp, err
		}
		if offset = int(resp.GetNextOffset()); offset <= 0 || offset >= len(text) {
			return nil, errors.New("the mesh requested a part that the archive does not have: try again")
		}
	}
}

func (t *tool) agentsSnapshot() *cobra.Command {
	var label string
	c := &cobra.Command{
		Use: "snapshot ID", Short: "Store an agent's current state, and print the snapshot's id", Args: args(cobra.ExactArgs(1)), ValidArgsFunction: t.completeAgent,
		RunE: func(c *cobra.Command, given []string) error {
			req := &wasmagentv1.SnapshotAgentRequest{AgentId: given[0]}
			if label != "" {
				req.Label = &label
			}
			return t.withAgents(c.Context(), requestTimeout, func(ctx context.Context, client wasmagentv1.AgentServiceClient) error {
				resp, err := client.SnapshotAgent(ctx, req)
				if err != nil {
					return t.explainError(err)
				}
				if t.json() {
					return t.printJSON(struct {
						ID     string `json:"id"`
						Digest string `json:"digest"`
						Bytes  int64  `json:"bytes"`
					}{resp.GetSnapshot().GetId(), resp.GetSnapshot().GetDigest(), resp.GetSnapshot().GetSizeBytes()})
				}
				t.printf("%s", resp.GetSnapshot().GetId())
				return nil
			})
		},
	}
	c.Flags().StringVar(&label, "label", "", "a name for the snapshot")
	return c
}

func (t *tool) agentsFork() *cobra.Command {
	var snapshot string
	c := &cobra.Command{
		Use: "fork ID", Short: "Create a second agent with the state of an agent, and print its id", Args: args(cobra.ExactArgs(1)), ValidArgsFunction: t.completeAgent,
		RunE: func(c *cobra.Command, given []string) error {
			req := &wasmagentv1.ForkAgentRequest{AgentId: given[0]}
			if snapshot != "" {
				req.SnapshotId = &snapshot
			}
			return t.withAgents(c.Context(), requestTimeout, func(ctx context.Context, client wasmagentv1.AgentServiceClient) error {
				resp, err := client.ForkAgent(ctx, req)
				if err != nil {
					return t.explainError(err)
				}
				if t.json() {
					return t.printJSON(newAgentRow(resp.GetAgent()))
				}
				t.printf("%s", resp.GetAgent().GetId())
				return nil
			})
		},
	}
	c.Flags().StringVar(&snapshot, "snapshot", "", "use this snapshot instead of the current state")
	return c
}

func (t *tool) agentsGrant() *cobra.Command {
	var tools, withdraw []string
	var lasts time.Duration
	var reason string
	c := &cobra.Command{
		Use: "grant ID", Short: "Let an agent call more tools, for a time or permanently, or withdraw a grant", Args: args(cobra.ExactArgs(1)), ValidArgsFunction: t.completeAgent,
		Example: "  " + t.self + " agents grant ID --tool demo/create_note --for 1h --reason 'to write the report'",
		RunE: func(c *cobra.Command, given []string) error {
			req := &wasmagentv1.GrantRightsRequest{AgentId: given[0], Withdraw: withdraw, Reason: reason}
			manifest, err := manifestOf(tools)
			if err != nil {
				return err
			}
			if manifest != nil {
				manifest.Files = nil // a grant is for tools only
				req.Rights = manifest
			}
			if lasts > 0 {
				req.ExpiresIn = durationpb.New(lasts)
			}
			return t.withAgents(c.Context(), requestTimeout, func(ctx context.Context, client wasmagentv1.AgentServiceClient) error {
				resp, err := client.GrantRights(ctx, req)
				if err != nil {
					return t.explainError(err)
				}
				may := []string{}
				for _, right := range resp.GetManifest().GetTools() {
					may = append(may, right.GetServer()+"/"+right.GetTool())
				}
				if t.json() {
					return t.printJSON(struct {
						Grant string   `json:"grant,omitempty"`
						Tools []string `json:"tools"`
					}{resp.GetGrant().GetId(), may})
				}
				if resp.GetGrant() != nil {
					t.printf("%s", resp.GetGrant().GetId())
				}
				return oneLine(t.errOut, "the agent may call %s", strconv.Quote(strings.Join(may, ", ")))
			})
		},
	}
	c.Flags().StringArrayVar(&tools, "tool", nil, "a tool that the agent may call: SERVER/TOOL, with * in TOOL for any text; may be repeated")
	c.Flags().StringArrayVar(&withdraw, "withdraw", nil, "the id of a grant to withdraw; may be repeated")
	c.Flags().DurationVar(&lasts, "for", 0, "how long the grant is valid (default as long as the agent)")
	c.Flags().StringVar(&reason, "reason", "", "the reason, for the journal (required)")
	_ = c.MarkFlagRequired("reason")
	return c
}
