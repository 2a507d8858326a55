package datadir

// SyncDir does nothing. Windows can't sync a directory, and NTFS itself records changes to file names in a journal.
func SyncDir(string) error { return nil }
