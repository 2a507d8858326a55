package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// maxRevisionPage is the maximum size of a page of revisions, and also of the whole list.
const maxRevisionPage = 1000

// revisionID matches a revision id or a prefix of it.
var revisionID = regexp.MustCompile(`^[0-9a-fA-F]{8,64}$`)

// checkRevisionID returns an error unless text can be a revision id or a prefix of it.
func checkRevisionID(text string) error {
	if revisionID.MatchString(text) {
		return nil
	}
	return usageError{fmt.Errorf("%q is not a revision: write at least %d of the hexadecimal digits that `sluice policy revisions` prints", text, minRevisionDigits)}
}

func shortRevision(id string) string { return id[:min(len(id), shownRevisionDigits)] }

// revisionRecord is a stored revision in the JSON output.
type revisionRecord struct {
	ID        string    `json:"id"`
	Number    int64     `json:"number"`
	Active    bool      `json:"active"`
	Activated time.Time `json:"activated"`
	Author    string    `json:"author"`
	Reason    string    `json:"reason"`
	// Approval is the id of the approval with which the revision became active. ApprovedBy contains the people who
	// approved it.
	Approval   string           `json:"approval,omitempty"`
	ApprovedBy []string         `json:"approvedBy,omitempty"`
	Documents  []documentRecord `json:"documents,omitempty"`
}

type documentRecord struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

func newRevisionRecord(r *policyv1.Revision) revisionRecord {
	return revisionRecord{
		ID: r.GetDocumentsId(), Number: r.GetNumber(), Active: r.GetActive(), Activated: r.GetActivated().AsTime().Local(), Author: r.GetAuthor(), Reason: r.GetComment(),
		Approval: r.GetApprovalId(), ApprovedBy: r.GetApprovedBy(),
	}
}

// String describes a revision in one line.
func (r revisionRecord) String() string {
	by := orDash(r.Author)
	if len(r.ApprovedBy) > 0 {
		by += ", approved by " + strings.Join(r.ApprovedBy, ", ") + ","
	}
	return fmt.Sprintf("revision %s, applied by %s at %s: %s", shortRevision(r.ID), by, r.Activated.Format(time.DateTime), orDash(r.Reason))
}

// policyDocuments describes the stored policy documents in the output of `status`.
type policyDocuments struct {
	// Applied is false if no documents have been applied. In this case, every call is refused.
	Applied bool `json:"applied"`
	// Revision is the active revision, or nil if there is none.
	Revision *revisionRecord `json:"revision,omitempty"`
}

// newPolicyDocuments describes the stored documents. It returns nil if the documents come from files, or if the person
// may not see them.
func newPolicyDocuments(active *policyv1.Revision) *policyDocuments {
	switch {
	case !active.GetStored():
		return nil
	case active.GetDocumentsId() == "":
		return new(policyDocuments)
	}
	record := newRevisionRecord(active)
	return &policyDocuments{Applied: true, Revision: &record}
}

// String describes the documents in one line.
func (p *policyDocuments) String() string {
	if !p.Applied {
		return "none have been applied, so every call is refused: apply some with `sluice policy apply`"
	}
	return p.Revision.String()
}

// withPolicyClient calls do with a client for the policy service. do must set a timeout for each of its requests.
// withPolicyClient sets none, because do may also wait for a person.
func (t *tool) withPolicyClient(ctx context.Context, do func(ctx context.Context, client policyv1.PolicyServiceClient) error) error {
	f, err := t.load()
	if err != nil {
		return err
	}
	conn, err := t.dial(f, authv1.Role_ROLE_POLICY)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only the answer matters
	return do(ctx, policyv1.NewPolicyServiceClient(conn))
}

func (t *tool) policyRevisions() *cobra.Command {
	return &cobra.Command{
		Use: "revisions", Short: "List the stored revisions of the policy, the newest first",
		Long: `List the revisions that ` + "`policy apply`" + ` and ` + "`policy rollback`" + ` have made, the newest first, with
their authors, the people who approved them, and the reasons. The active one is marked. The mesh
stores the last 1,000 revisions, and at most 256 MiB of documents.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return t.withPolicyClient(c.Context(), func(ctx context.Context, client policyv1.PolicyServiceClient) error {
				if _, err := t.storedRevision(ctx, client); err != nil {
					return err
				}
				all, err := t.listRevisions(ctx, client)
				if err != nil {
					return err
				}
				return t.printRevisions(all)
			})
		},
	}
}

// listRevisions returns the stored revisions, newest first.
func (t *tool) listRevisions(ctx context.Context, client policyv1.PolicyServiceClient) ([]revisionRecord, error) {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	resp, err := client.ListRevisions(ctx, &policyv1.ListRevisionsRequest{PageSize: maxRevisionPage})
	if err != nil {
		return nil, t.explainError(err)
	}
	out := make([]revisionRecord, len(resp.GetRevisions()))
	for i, r := range resp.GetRevisions() {
		out[i] = newRevisionRecord(r)
	}
	return out, nil
}

func (t *tool) printRevisions(all []revisionRecord) error {
	if t.json() {
		return t.printJSON(all)
	}
	if len(all) == 0 {
		t.printf("no policy has been applied yet, so every call is refused: %s", t.command("policy apply policies/ -m REASON"))
		return nil
	}
	head := []string{"REVISION", "STATE", "NUMBER", "APPLIED", "BY"}
	approved := slices.ContainsFunc(all, func(r revisionRecord) bool { return len(r.ApprovedBy) > 0 })
	if approved {
		head = append(head, "APPROVED BY")
	}
	rows := make([][]string, len(all))
	for i, r := range all {
		active := "-"
		if r.Active {
			active = "active"
		}
		rows[i] = []string{shortRevision(r.ID), active, strconv.FormatInt(r.Number, 10), r.Activated.Format(time.DateTime), orDash(r.Author)}
		if approved {
			rows[i] = append(rows[i], orDash(strings.Join(r.ApprovedBy, ", ")))
		}
		rows[i] = append(rows[i], orDash(r.Reason))
	}
	return t.table(append(head, "REASON"), rows)
}

func (t *tool) policyRevision() *cobra.Command {
	export := ""
	c := &cobra.Command{
		Use:   "revision REVISION",
		Short: "Print a stored revision of the policy and its documents, or write them to a folder",
		Long: `Print a stored revision of the policy: its author, time and reason, and its documents. REVISION
is at least 8 digits of its id.`,
		Example:           "  " + t.self + " policy revision 3f9a0c1d --export policies-before",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeRevision,
		RunE: func(c *cobra.Command, given []string) error {
			if err := checkRevisionID(given[0]); err != nil {
				return err
			}
			return t.withPolicyClient(c.Context(), func(ctx context.Context, client policyv1.PolicyServiceClient) error {
				found, err := t.readRevision(ctx, client, given[0])
				if err != nil {
					return err
				}
				return t.printRevision(found, export)
			})
		},
	}
	c.Flags().StringVar(&export, "export", "", "write the documents to this `FOLDER`, for policy apply; existing files are not replaced")
	return c
}

// readRevision reads the revision whose id begins with the given digits. At least 8 digits are required.
func (t *tool) readRevision(ctx context.Context, client policyv1.PolicyServiceClient, id string) (*policyv1.GetRevisionResponse, error) {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	resp, err := client.GetRevision(ctx, &policyv1.GetRevisionRequest{Revision: strings.ToLower(id)})
	if err != nil {
		return nil, t.explainError(err)
	}
	return resp, nil
}

func (t *tool) printRevision(found *policyv1.GetRevisionResponse, export string) error {
	out := newRevisionRecord(found.GetRevision())
	for _, d := range found.GetDocuments() {
		out.Documents = append(out.Documents, documentRecord{Path: d.GetPath(), Text: d.GetText()})
	}
	if export != "" {
		if err := exportDocuments(export, out.Documents); err != nil {
			return err
		}
	}
	if t.json() {
		return t.printJSON(out)
	}
	t.printf("%s", out)
	for _, d := range out.Documents {
		if export != "" {
			t.printf("written: %s", path.Join(export, exportName(d.Path)))
			continue
		}
		t.printf("")
		t.printf("%s:", d.Path)
		for line := range strings.Lines(d.Text) {
			t.printf("  %s", strings.TrimRight(line, "\r\n"))
		}
	}
	return nil
}

// exportName returns the name of the file to which a document is exported. The stored path of a document could name any
// file. Therefore exportName uses only the last element of the path, so that no file outside the folder is written.
func exportName(document string) string {
	return path.Base("/" + strings.ReplaceAll(document, `\`, "/"))
}

// exportDocuments writes documents to a folder, which it creates if necessary. It returns an error if a file already
// exists, or if `policy apply` would not read a file with this name.
func exportDocuments(folder string, documents []documentRecord) (err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("write the documents: %w", err)
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return fmt.Errorf("write the documents: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, d := range documents {
		name := exportName(d.Path)
		if name == "/" || strings.HasPrefix(name, ".") {
			return fmt.Errorf("write the documents: %q has no name of a file", d.Path)
		}
		file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("write the documents: %w", err)
		}
		_, err = file.WriteString(d.Text)
		if err := errors.Join(err, file.Close()); err != nil {
			return fmt.Errorf("write the documents: %w", err)
		}
	}
	return nil
}

// completeRevision completes the id of a stored revision.
func (t *tool) completeRevision(c *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	_ = t.checkFlags(c, nil) // errors in flags are ignored, so that completion still works
	var out []string
	_ = t.withPolicyClient(c.Context(), func(ctx context.Context, client policyv1.PolicyServiceClient) error { // if this fails, nothing is completed
		all, err := t.listRevisions(ctx, client)
		for _, r := range all {
			if revisionID.MatchString(r.ID) {
				out = append(out, shortRevision(r.ID)+"\t"+safetext.Line(r.Reason))
			}
		}
		return err
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}
