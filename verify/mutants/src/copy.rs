//! A copy of the repository in which the changes are made.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Mutant;

/// The copy, below `target`. It stays, so that the next run need not build everything again.
pub(crate) struct Copy {
    dir: PathBuf,
}

impl Copy {
    /// Copies what git knows of the repository, as it is now.
    pub(crate) fn of(root: &Path) -> Result<Self, String> {
        let dir = root.join("target/mutants");
        let error = |what: &Path, e: std::io::Error| format!("{}: {e}", what.display());
        let listed = Command::new("git")
            .current_dir(root)
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()
            .map_err(|e| format!("git: {e}"))?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        for file in listed.split('\0').filter(|f| !f.is_empty()) {
            let (from, to) = (root.join(file), dir.join(file));
            let Ok(bytes) = std::fs::read(&from) else { continue };
            // A file that is as it was keeps its time, so that cargo builds nothing for it.
            if std::fs::read(&to).is_ok_and(|old| old == bytes) {
                continue;
            }
            let parent = to.parent().expect("a file has a folder");
            std::fs::create_dir_all(parent).map_err(|e| error(parent, e))?;
            std::fs::copy(&from, &to).map_err(|e| error(&to, e))?;
        }
        Ok(Self { dir })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Does something while the change is made.
    pub(crate) fn with<T>(
        &self,
        mutant: &Mutant,
        then: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let file = self.dir.join(&mutant.file);
        let error = |e| format!("{}: {e}", file.display());
        let text = std::fs::read_to_string(&file).map_err(error)?;
        let mut changed = text.clone();
        changed.replace_range(mutant.range.clone(), &mutant.replacement);
        std::fs::write(&file, changed).map_err(error)?;
        let result = then();
        std::fs::write(&file, text).map_err(error)?;
        result
    }
}
