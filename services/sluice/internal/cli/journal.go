package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func (t *tool) journal() *cobra.Command {
	return group("journal", "Verify the files of a gateway's journal", t.journalVerify())
}

func (t *tool) journalVerify() *cobra.Command {
	var heads []string
	c := &cobra.Command{
		Use:   "verify [DIR]",
		Short: "Verify all records of a journal, offline, and name the first wrong record",
		Long: `Verify all records of a journal. If records were changed, removed or moved, or are missing, the
command reports the first of them and exits with 1. The gateway may be running. DIR is the
journal's folder or a data folder (default the configured data folder). With a head that was
stored elsewhere, the command also detects records that have since been removed from the end,
and older copies of the journal. Heads are in the output of ` + "`status -o json`" + `, in the gateway's
log, and in the journal's file head.json.`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(_ *cobra.Command, given []string) error {
			dir, err := t.journalDir(given)
			if err != nil {
				return err
			}
			var elsewhere []journal.Head
			for _, path := range heads {
				read, err := journal.ReadHeads(path)
				if err != nil {
					return err
				}
				elsewhere = append(elsewhere, read...)
			}
			report, err := journal.Verify(dir, elsewhere...)
			if errors.Is(err, journal.ErrNoJournal) {
				return err
			}
			return errors.Join(t.printVerified(dir, report, err), err)
		},
	}
	c.Flags().StringArrayVar(&heads, "head", nil, "a file with heads that were stored elsewhere; may be repeated")
	return c
}

// journalDir returns the directory of the journal. The argument, or the configured data directory if there is no
// argument, either contains the journal's directory or is itself the journal's directory.
func (t *tool) journalDir(given []string) (string, error) {
	var dir string
	if len(given) > 0 {
		dir = given[0]
	} else {
		f, err := t.load()
		if err != nil {
			return "", err
		}
		dir = f.Path(f.Data)
	}
	if below := filepath.Join(dir, "gateway", "journal"); isDir(below) {
		return below, nil
	}
	if !isDir(dir) {
		return "", fmt.Errorf("the folder %s does not exist: name the journal's folder or a data folder", dir)
	}
	return dir, nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

type verifiedJournal struct {
	Dir      string        `json:"dir"`
	Whole    bool          `json:"whole"`
	Calls    verifiedChain `json:"calls"`
	Refusals verifiedChain `json:"refusals"`
	Head     *journal.Head `json:"head,omitempty"`
	Wrong    string        `json:"wrong,omitzero"`
}

type verifiedChain struct {
	Segments int    `json:"segments"`
	Records  int64  `json:"records"`
	First    int64  `json:"first"`
	Last     int64  `json:"last"`
	Hash     string `json:"hash,omitzero"`
	Torn     int64  `json:"tornBytes,omitzero"`
}

func (c verifiedChain) String() string {
	if c.Records == 0 {
		return "no records"
	}
	line := fmt.Sprintf("records %d to %d in %d segments", c.First, c.Last, c.Segments)
	if c.First > 1 {
		line += fmt.Sprintf("; the %d before them were pruned", c.First-1)
	}
	if c.Torn > 0 {
		line += fmt.Sprintf("; the %d bytes after them are an incomplete record: the gateway is writing it, or crashed and removes it at its next start", c.Torn)
	}
	return line
}

func (t *tool) printVerified(dir string, r journal.Report, wrong error) error {
	out := verifiedJournal{Dir: dir, Whole: wrong == nil, Calls: newVerifiedChain(r.Calls), Refusals: newVerifiedChain(r.Refusals), Head: r.Head}
	if wrong != nil {
		out.Wrong = wrong.Error()
	}
	if t.json() {
		return t.printJSON(out)
	}
	whole := "yes"
	if wrong != nil {
		whole = "NO: only the records below are correct"
	}
	return t.table([]string{"WHAT", "STATE"}, [][]string{
		{"journal", dir}, {"whole", whole}, {"calls", out.Calls.String()}, {"refusals", out.Refusals.String()}, {"head", formatHead(r.Head)},
	})
}

func newVerifiedChain(c journal.ChainReport) verifiedChain {
	return verifiedChain{Segments: c.Segments, Records: c.Records, First: c.First, Last: c.Last, Hash: c.Head, Torn: c.Incomplete}
}

func formatHead(h *journal.Head) string {
	if h == nil {
		return "-"
	}
	return fmt.Sprintf("sealed %s: %d calls %.16s…, %d refusals %.16s…, key %.16s…",
		h.Time.Local().Format(time.DateTime), h.Calls.Count, h.Calls.Hash, h.Refusals.Count, h.Refusals.Hash, h.Key)
}

// journalCheck describes how many older records a gateway has checked since it started.
type journalCheck struct {
	Done     bool     `json:"done"`
	Segments int32    `json:"segments"`
	Records  int64    `json:"records"`
	Broken   []string `json:"broken,omitempty"`
}

func newJournalCheck(c *gatewayv1.JournalCheck) journalCheck {
	return journalCheck{Done: c.GetDone(), Segments: c.GetSegments(), Records: c.GetRecords(), Broken: c.GetBroken()}
}

func (c journalCheck) String() string {
	word := "being checked"
	if c.Done {
		word = "checked"
	}
	if len(c.Broken) > 0 {
		return fmt.Sprintf("%s; BROKEN after %d correct segments: run `sluice journal verify` for details", word, c.Segments)
	}
	return fmt.Sprintf("%s; %d older segments with %d records are correct", word, c.Segments, c.Records)
}
