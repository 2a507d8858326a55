package sqlstore

import (
	"database/sql"
	"fmt"
	"net/url"
	"os"
)

// OpenReadOnly opens the SQLite file only for reading. This is possible even if another process is writing to the file.
// If the file does not exist, the error is [os.ErrNotExist]. The caller must close the database.
func OpenReadOnly(file string) (*sql.DB, error) {
	if _, err := os.Stat(file); err != nil {
		return nil, fmt.Errorf("open the store: %w", err)
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: file}).EscapedPath()+"?mode=ro&_pragma=busy_timeout(1000)")
	if err != nil {
		return nil, fmt.Errorf("open the store %s: %w", file, err)
	}
	db.SetMaxOpenConns(1)
	return db, nil
}
